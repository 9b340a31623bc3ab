"""What chat data should become, by a route of its own: records are read as the formats are documented (crates/data/README.md),
transformers renders and encodes them, PyTorch computes the loss. Nothing here comes from the crates but the templates' text.

Used by `compare.py`, on any data and model, and by `make.py`, which writes the golden that CI compares with.
"""

import json
import math
import pathlib
import re
from collections import Counter

import jinja2
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

BUILT_IN = pathlib.Path(__file__).parent / "../../../../data/src/chat/templates"
IGNORE = -100


class Skip(Exception):
    """A record that is left out, by the kind that `data preview` counts it as."""


# ---- records --------------------------------------------------------------------------------------------------------------


def read(path):
    """The records of a JSON array or of JSON lines, each with the line that it begins at."""
    text = pathlib.Path(path).read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        return [(i + 1, json.loads(line)) for i, line in enumerate(text.split("\n")) if line.strip()]
    records, decoder, blank = [], json.JSONDecoder(), re.compile(r"[\s,]*")
    at, line, counted = text.index("[") + 1, 1, 0
    while True:
        at = blank.match(text, at).end()
        if text[at] == "]":
            return records
        line += text.count("\n", counted, at)
        counted = at
        record, at = decoder.raw_decode(text, at)
        records.append((line, record))


def conversation(record):
    """(messages as transformers takes them, tools or None, for each message whether it says that it is learnt)."""
    if "conversations" in record:
        messages = list(map(sharegpt_message, record["conversations"]))
    elif "messages" in record:
        messages = list(map(openai_message, record["messages"]))
    else:
        messages = alpaca_messages(record)
    turns = "".join({"system": "S", "user": "U", "assistant": "A", "tool": "T"}[m["role"]] for m in messages)
    if not turns.endswith("A"):
        raise Skip("no answer")
    if not re.fullmatch("S?UA((U|T+)A)*", turns):
        raise Skip("turns out of order")
    if record.get("system") and turns[0] != "S":
        messages.insert(0, {"role": "system", "content": record["system"]})
    tools = record.get("tools") or []
    tools = json.loads(tools) if isinstance(tools, str) else tools
    tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
    return messages, tools or None, [message.pop("train", None) for message in messages]


def alpaca_messages(record):
    """instruction, a line break and input; earlier pairs before them."""
    asked = "\n".join(filter(None, [record.get("instruction"), record.get("input")]))
    messages = []
    for question, answer in [*(record.get("history") or []), (asked, record.get("output"))]:
        if not question or not answer:
            raise Skip("field empty")
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def sharegpt_message(turn):
    roles = {"human": "user", "gpt": "assistant", "observation": "tool", "system": "system"}
    if turn["from"] != "function_call":
        if turn["from"] == "gpt" and not turn["value"]:
            raise Skip("field empty")
        return {"role": roles[turn["from"]], "content": turn["value"]}
    calls = json.loads(turn["value"])
    return {"role": "assistant", "content": "", "tool_calls": list(map(call, calls if isinstance(calls, list) else [calls]))}


def call(function):
    """Arguments may be a string of JSON; templates print them as an object."""
    arguments = function["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"type": "function", "function": function | {"arguments": arguments}}


def openai_message(message):
    """`train` or `weight` says whether it is learnt; the content may come in parts."""
    message = dict(message)
    weight = message.pop("weight", None)
    if weight is not None:
        message["train"] = weight == 1
    content = message.get("content") or ""
    message["content"] = content if isinstance(content, str) else "".join(part["text"] for part in content)
    if "tool_calls" in message:
        message["tool_calls"] = [asked | call(asked["function"]) for asked in message["tool_calls"]]
    return message


# ---- rendering ------------------------------------------------------------------------------------------------------------

CHATML = {role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ["user", "assistant"]}
LLAMA3 = {role: (f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>") for role in ["user", "assistant"]}
# How a turn begins and ends, from the formats' documentation: what is learnt lies between, its end included.
DELIMITERS = {
    "own": CHATML,
    "smollm2": CHATML,
    "chatml": CHATML,
    "qwen2.5": CHATML,
    "qwen3": CHATML,
    "llama3": LLAMA3,
    "llama3.1": LLAMA3,
    "gemma": {"user": ("<start_of_turn>user\n", "<end_of_turn>\n"), "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n")},
    "mistral": {"user": ("[INST] ", " [/INST]"), "assistant": (" [/INST]", "{eos}")},
    "phi3": {role: (f"<|{role}|>\n", "<|end|>\n") for role in ["user", "assistant"]},
    "phi4": {role: (f"<|im_start|>{role}<|im_sep|>", "<|im_end|>") for role in ["user", "assistant"]},
}


class Encoder:
    """Messages to (input_ids, labels), with a model's tokenizer and a template: "own" is the model's, others are built in."""

    def __init__(self, tokenizer, template):
        self.tokenizer, self.name = tokenizer, template
        self.text = tokenizer.chat_template if template == "own" else (BUILT_IN / f"{template}.jinja").read_text()
        self.turns = Counter()

    def encode(self, record, train_on="all-turns"):
        messages, tools, flags = conversation(record)
        if "tool_calls" not in self.text:
            messages = list(map(calls_as_text, messages))
        last = max(k for k, message in enumerate(messages) if message["role"] == "assistant")
        policy = {
            "all-turns": lambda k: messages[k]["role"] == "assistant",
            "last-turn": lambda k: k == last,
            "everything": lambda k: True,
        }[train_on]
        wanted = [policy(k) if flag is None else flag for k, flag in enumerate(flags)]
        full = self.rendered = self.render(messages, tools)
        rendered = dict(tools=tools, chat_template=self.text, return_dict=True)
        ids = self.tokenizer.apply_chat_template(messages, **rendered)["input_ids"]
        offsets = self.tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
        assert ids == offsets["input_ids"], "apply_chat_template encodes what it renders"
        everything = train_on == "everything"
        spans = [self.span(k, messages, tools, full) for k in range(len(messages)) if wanted[k] != everything]
        inside = [any(end > a and start < b for a, b in spans) for start, end in offsets["offset_mapping"]]
        labels = [i if learnt != everything else IGNORE for i, learnt in zip(ids, inside)]
        if all(label == IGNORE for label in labels[1:]):
            raise Skip("nothing to learn")
        return ids, labels

    def render(self, messages, tools, prompt=False):
        options = dict(tools=tools, chat_template=self.text, tokenize=False, add_generation_prompt=prompt)
        try:
            return self.tokenizer.apply_chat_template(messages, **options)
        except jinja2.TemplateError:
            raise Skip("refused by the chat template") from None

    def span(self, k, messages, tools, full):
        """Where message k stands in the rendering: by prefixes and by delimiters, which agree wherever both are defined."""
        role = messages[k]["role"]
        prefix = None
        if role == "assistant":
            try:
                prompt, upto = self.render(messages[:k], tools, True), self.render(messages[: k + 1], tools)
                if full.startswith(prompt) and full.startswith(upto):
                    prefix = (len(prompt), len(upto))
            except Skip:  # the template cannot render what is no whole conversation
                pass
        head, tail = DELIMITERS[self.name][role]
        tail = tail.replace("{eos}", self.tokenizer.eos_token)
        found = [match.span(1) for match in re.finditer(f"{re.escape(head)}(.*?{re.escape(tail)})", full, re.DOTALL)]
        same = [i for i, message in enumerate(messages) if message["role"] == role]
        delimited = found[same.index(k)] if len(found) == len(same) else None
        if delimited and k == len(messages) - 1:
            delimited = (delimited[0], len(full))  # with what closes the conversation
        assert prefix or delimited, (self.name, k, full)
        assert not (prefix and delimited) or prefix == delimited, (self.name, k, full[slice(*prefix)], full[slice(*delimited)])
        self.turns["both" if prefix and delimited else "prefixes" if prefix else "delimiters"] += 1
        return prefix or delimited


def calls_as_text(message):
    """Where a template has no place for calls: one JSON object a line, behind the content."""
    if "tool_calls" not in message:
        return message
    lines = [json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"]]
    message = {key: value for key, value in message.items() if key != "tool_calls"}
    return message | {"content": "\n".join(filter(None, [message["content"], *lines]))}


def tokenizer(model_dir):
    """`tokenizer.json` as it is. AutoTokenizer of transformers 5 rebuilds some tokenizers from the name of their class, and then
    splits text otherwise (https://github.com/huggingface/transformers/issues/45920)."""
    return PreTrainedTokenizerFast.from_pretrained(model_dir)


# ---- loss -----------------------------------------------------------------------------------------------------------------


def load(model_dir, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="eager").eval()


def token_losses(model, ids, labels):
    """Of one record alone: the loss of each target in the model's precision; again by f64 from the same logits; the root mean
    square of the logits; and for each target, how much of its loss an f32 sum over the vocabulary may lose."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    targets = torch.tensor(labels[1:])
    logits, targets = logits[targets != IGNORE], targets[targets != IGNORE]
    loss = lambda logits: torch.nn.functional.cross_entropy(logits, targets, reduction="none").double()
    return loss(logits), loss(logits.double()), logits.square().mean().sqrt().item(), lost(logits)


U = 2.0**-24  # the rounding unit of f32
LANES = 8  # of f32 in 256 bits, the least that either side adds up beside each other: a sum of n terms is n / LANES deep


def lost(logits):
    """An addition is wrong by no more than the term, and by no more than U times the sum so far: over a vocabulary most terms are
    far smaller than that and get lost, always to the same side."""
    p = torch.nn.functional.softmax(logits, dim=-1)
    p = torch.nn.functional.pad(p, (0, -p.shape[-1] % LANES)).unflatten(-1, (-1, LANES))
    return torch.minimum(p, U * p.sum(-2, keepdim=True)).sum((-2, -1)).double()


def tolerance(config, tokens, logit_rms, lost, records):
    """How far the mean losses of two f32 computations may lie apart.

    Errors of rounded sums grow as the root of their depth (Higham and Mary, SIAM J. Sci. Comput. 41, 2019), so a logit of size z
    has one of about U z sqrt(D), with D the depth of all sums between an embedding and a logit; a loss has that of two logits,
    and the difference of two means that of two losses by the root of the number of records; 3 for the tails. Both may lose
    `lost` besides, which does not average out.
    """
    deep = lambda n: n / LANES + 3
    hidden, heads = config.hidden_size, config.num_attention_heads * config.head_dim
    # norm, q, score, softmax, weighted values, o; norm, gate, down; and two residual sums
    layer = [hidden, hidden, config.head_dim, tokens, tokens, heads, hidden, hidden, config.intermediate_size]
    depth = config.num_hidden_layers * (sum(map(deep, layer)) + 2) + deep(hidden) + deep(hidden)
    return 3 * 2 * U * logit_rms * math.sqrt(depth / records) + 2 * lost
