"""Compares `megatrain data preview --json` and a run's evaluation loss with transformers and PyTorch, on any data and model.

    python compare.py --megatrain target/release/megatrain --model SmolLM2-135M --data alpaca_en_demo.json glaive_toolcall_en_demo.json \\
        --template own llama3.1 qwen3 qwen2.5 mistral chatml gemma phi3 --train-on all-turns last-turn everything --loss-records 64

Needs torch 2.15, transformers 5.24 (another version may differ in the last bits of a loss). Prints tables in Markdown; the exit
code is 1 if anything differs. "own" is the model's template, the others are built in; reference.py is the other side.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter

import torch
import transformers
from transformers import AutoTokenizer

import reference
from reference import IGNORE, Encoder, Skip


def megatrain(options, *arguments):
    done = subprocess.run([options.megatrain, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"megatrain {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout, done.stderr


def template_arguments(template):
    return [] if template == "own" else ["--template", template]


def compare_tokens(options, tokenizer, auto, data, template, train_on):
    """A row of the table, and the records that both keep."""
    encoder, kept, skipped, otherwise = Encoder(tokenizer, template), [], [], 0
    for line, record in reference.read(data):
        try:
            ids, labels = encoder.encode(record, train_on)
            if len(ids) > options.seq_len:
                raise Skip("too long")
            kept.append((record, ids, labels))
            otherwise += auto(encoder.rendered, add_special_tokens=False)["input_ids"] != ids
        except Skip as skip:
            skipped.append((line, str(skip)))
    if not kept:
        return None, []
    arguments = ["--model", options.model, "--data", data, "--seq-len", options.seq_len, "--train-on", train_on, "--json"]
    stdout, stderr = megatrain(options, "data", "preview", *arguments, *template_arguments(template))
    ours = [json.loads(line) for line in stdout.splitlines()]
    differing = Counter(records=abs(len(ours) - len(kept)))
    for (record, ids, labels), row in zip(kept, ours):
        differing["ids"] += row["input_ids"] != ids
        differing["labels"] += row["labels"] != labels
        if (row["input_ids"], row["labels"]) != (ids, labels) and differing["ids"] + differing["labels"] < 6:
            explain(tokenizer, row, ids, labels)
    counts = Counter({kind: int(n) for n, kind in re.findall(r"^ +(\d+) x ([a-z' ]+), first", stderr, re.MULTILINE)})
    listed = [int(line) for line in re.findall(r"^skipped  .*?:(\d+): ", stderr, re.MULTILINE)]
    # The first of them are listed by line, those that were no conversation before those that the template refused.
    lines = {line for line, _ in skipped}
    differing["skips"] = counts != Counter(kind for _, kind in skipped) or not lines.issuperset(listed)
    targets = sum(label != IGNORE for _, _, labels in kept for label in labels[1:])
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "none"
    found = ", ".join(f"{n} {how}" for how, n in sorted(encoder.turns.items())) or "not needed"
    row = [len(kept), kinds, sum(len(ids) for _, ids, _ in kept), targets, found]
    return row + [differing[key] + 0 for key in ["records", "skips", "ids", "labels"]] + [otherwise], kept


def explain(tokenizer, row, ids, labels):
    for name, ours, theirs in [("input_ids", row["input_ids"], ids), ("labels", row["labels"], labels)]:
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            around = slice(max(0, at - 8), at + 8)
            print(f"{name} differ at {at}: ours {ours[around]}, transformers {theirs[around]}", file=sys.stderr)
            print(f"   {tokenizer.decode(ids[around])!r}", file=sys.stderr)


def compare_loss(options, model, double, data, template, kept):
    """A row: PyTorch's mean loss, ours, their difference, its bound, and what rounding alone does to PyTorch's."""
    chosen = [row for row in kept if len(row[1]) <= options.loss_tokens][: options.loss_records]
    losses, wide, sizes, lost, exact = [], [], [], [], []
    for i, (_, ids, labels) in enumerate(chosen):
        results = reference.token_losses(model, ids, labels)
        for column, result in zip([losses, wide, sizes, lost], results):
            column.append(result)
        if double:
            exact.append(reference.token_losses(double, ids, labels)[0])
        print(f"PyTorch: record {i + 1} of {len(chosen)}", end="\r", file=sys.stderr)
    losses, wide = torch.cat(losses), torch.cat(wide).mean().item()
    theirs, ours = losses.mean().item(), our_loss(options, data, template, [record for record, _, _ in chosen])
    longest, size = max(len(ids) for _, ids, _ in chosen), sum(sizes) / len(sizes)
    bound = reference.tolerance(model.config, longest, size, torch.cat(lost).mean().item(), len(chosen))
    row = [len(chosen), len(losses), f"{theirs:.8f}", f"{ours:.8f}", f"{ours - theirs:.1e}", f"{bound:.1e}"]
    row += [f"{theirs - wide:.1e}", f"{ours - wide:.1e}"]
    if double:
        exact = torch.cat(exact)
        row += [f"{mean - exact.mean().item():.1e}" for mean in [theirs, wide, ours]]
    return row, abs(ours - theirs) <= bound


def our_loss(options, data, template, records):
    """The evaluation before the first step, packed; the run is ended when it is there."""
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        data = pathlib.Path(scratch) / "records.json"
        data.write_text(json.dumps(records, indent=1))
        metrics = pathlib.Path(scratch) / "out/metrics.jsonl"
        command = [options.megatrain, "train", "--model", options.model, "--data", data, "--eval-data", data]
        command += ["--seq-len", options.loss_tokens, "--dtype", "f32", "--device", "cpu", "--batch-size", 1, "--steps", 1]
        command += ["--out", metrics.parent, *template_arguments(template)]
        with open(f"{scratch}/log", "w+") as log:
            run = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
            try:
                while True:
                    ended = run.poll() is not None
                    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
                    for line in map(json.loads, lines):
                        if "eval_loss" in line:
                            return line["eval_loss"]
                    if ended:
                        sys.exit(f"{' '.join(map(str, command))}\n{pathlib.Path(log.name).read_text()}")
                    time.sleep(0.2)
            finally:
                run.kill()
                run.wait()


def table(title, heads, rows):
    print(f"\n## {title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megatrain", required=True, help="the binary")
    parser.add_argument("--model", required=True, help="a model directory with a tokenizer and a chat template")
    parser.add_argument("--data", required=True, nargs="+", help="alpaca, ShareGPT or OpenAI records")
    parser.add_argument("--template", nargs="+", default=["own"], choices=list(reference.DELIMITERS))
    parser.add_argument("--train-on", nargs="+", default=["all-turns"], choices=["all-turns", "last-turn", "everything"])
    parser.add_argument("--seq-len", type=int, default=8192, help="longer records are left out by both")
    parser.add_argument("--loss-records", type=int, default=0, help="how many records the loss is compared on")
    parser.add_argument("--loss-tokens", type=int, default=1024, help="the longest of these")
    parser.add_argument("--double", action="store_true", help="compute the loss in f64, too, for the size of rounding errors")
    parser.add_argument("--scratch", help="folder for the runs' output")
    options = parser.parse_args()
    tokenizer, auto = reference.tokenizer(options.model), AutoTokenizer.from_pretrained(options.model)
    model = reference.load(options.model) if options.loss_records else None
    double = reference.load(options.model, torch.float64) if options.loss_records and options.double else None
    tokens, losses, good = [], [], True
    for data in options.data:
        for template in options.template:
            for train_on in options.train_on:
                began = time.time()
                name = [pathlib.Path(data).stem, template]
                row, kept = compare_tokens(options, tokenizer, auto, data, template, train_on)
                if row is None:
                    tokens.append([*name, train_on, "refused by the template, all of them"] + [""] * 9)
                    continue
                good &= row[5:9] == [0] * 4
                tokens.append([*name, train_on, *row])
                print(f"{time.time() - began:5.0f} s  {tokens[-1]}", file=sys.stderr)
                if options.loss_records and train_on == options.train_on[0]:
                    row, near = compare_loss(options, model, double, data, template, kept)
                    good &= near
                    losses.append([*name, *row])
                    print(f"{time.time() - began:5.0f} s  {losses[-1]}", file=sys.stderr)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    heads = ["data", "template", "learnt", "records", "left out", "tokens", "targets", "turns found by"]
    table("Tokens and labels", heads + ["records differing", "skips differing", "ids differing", "labels differing", "AutoTokenizer otherwise"], tokens)
    if losses:
        heads = ["data", "template", "records", "targets", "PyTorch", "MegaTrain", "difference", "bound"]
        heads += ["PyTorch - f64 loss of its logits", "MegaTrain - the same"]
        more = ["PyTorch - all in f64", "f64 loss of its logits - the same", "MegaTrain - the same"]
        table("Loss", heads + (more if double else []), losses)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
