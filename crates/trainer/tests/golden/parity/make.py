"""Writes the goldens of tests/parity.rs: a tiny random model, and what transformers and PyTorch make of the records beside this
file by four templates (golden.json). Whether megatrain agrees is the test's business.

    python make.py    # torch 2.15, transformers 5.24; other versions may change the last bits of the losses

The tokenizer is the small one of crates/data/tests/golden/chat. Of each record `ids`, and in `learnt`, for every --train-on that
is compared, the ranges of places whose labels are their ids; all others are -100.
"""

import json
import pathlib

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import reference
from reference import IGNORE, Encoder, Skip

HERE = pathlib.Path(__file__).parent
TOKENIZER = HERE / "../../../../data/tests/golden/chat/tokenizer.json"
TEMPLATES = ["smollm2", "llama3.1", "qwen3", "mistral"]
TRAIN_ON = ["all-turns", "last-turn", "everything"]


def model():
    """Small, but with logits and attention that are far from uniform; in bf16, as SmolLM2 is."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=400, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.normal_(1, 0.1)
    model.bfloat16().save_pretrained(HERE)
    (HERE / "generation_config.json").unlink(missing_ok=True)
    return reference.load(HERE)


def ranges(labels):
    """[[begin, end], ...] of what is learnt."""
    borders = [i for i, pair in enumerate(zip([IGNORE, *labels], [*labels, IGNORE])) if (pair[0] == IGNORE) != (pair[1] == IGNORE)]
    return [list(pair) for pair in zip(borders[::2], borders[1::2])]


def row(model, tokenizer, data, template):
    """What becomes of a file; a record of which a policy learns nothing has null there."""
    encoder, records, skipped, losses, sizes, lost, longest = Encoder(tokenizer, template), [], [], [], [], [], 0
    for line, record in reference.read(HERE / data):
        learnt, ids = {}, None
        for train_on in TRAIN_ON:
            try:
                ids, labels = encoder.encode(record, train_on)
                learnt[train_on] = ranges(labels)
            except Skip as skip:
                learnt[train_on], reason = None, str(skip)
                continue
            if train_on == "all-turns":
                _, loss, size, may_lose = reference.token_losses(model, ids, labels)
                losses.append(loss)
                sizes.append(size)
                lost.append(may_lose)
                longest = max(longest, len(ids))
        if ids:
            records.append({"line": line, "ids": ids, "learnt": learnt})
        else:
            skipped.append({"line": line, "reason": reason})
    may_lose = torch.cat(lost).mean().item()
    bound = reference.tolerance(model.config, longest, sum(sizes) / len(sizes), may_lose, len(losses))
    losses = torch.cat(losses)
    figures = {"targets": len(losses), "loss": losses.mean().item(), "bound": float(f"{bound:.1e}")}
    return {"data": data, "template": template, **figures, "skipped": skipped, "records": records}


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), bos_token="<s>", eos_token="</s>")
    tiny, rows = model(), []
    for data in ["alpaca.json", "glaive.json", "flags.jsonl"]:
        for template in TEMPLATES:
            rows.append(row(tiny, tokenizer, data, template))
            print(data, template, {key: rows[-1][key] for key in ["targets", "loss", "bound", "skipped"]})
    made = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    (HERE / "golden.json").write_text(json.dumps({"made_by": made})[:-1] + ',\n"rows": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
