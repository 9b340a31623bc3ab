"""Token ids and masks that transformers gives, for tests/chat.rs: writes tokenizer.json and encoding.json beside this file.

    python make_encoding.py [ALPACA.json GLAIVE.json]    # transformers 5.24, tokenizers 0.22 or 0.23

The tokenizer is a byte-level BPE of 400 ids, trained on the conversations of make_rendering.py. Masks are transformers' own
(`return_assistant_tokens_mask`), from the built-in templates with `{% generation %}` put around the assistant's text by
hand; the crate finds them without such marks. With the two files, which LLaMA-Factory has as alpaca_en_demo.json and
glaive_toolcall_en_demo.json, the shortest of their samples with at least so many turns are added.
"""

import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
BUILT_IN = HERE / "../../../src/chat/templates"
SPECIAL = """<s> </s> <unk> <|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|end|> <|user|> <|assistant|>
 <|system|> <start_of_turn> <end_of_turn> <｜User｜> <｜Assistant｜>""".split()

# What stands for the assistant's text in each template, and the same with marks. The begin is what a generation prompt
# ends with; the end is what the model has to write to end its turn, and white space after it.
ASSISTANT = "message['role'] == 'assistant'"
PLAIN = "{{{{ {head} + {content} + {end} }}}}"
MARKED = "{{{{ {head} }}}}{{% if {assistant} %}}{{% generation %}}{{{{ {content} + {end} }}}}{{% endgeneration %}}{{% else %}}{{{{ {content} + {end} }}}}{{% endif %}}"


def every(head, content, end, assistant=ASSISTANT):
    parts = dict(head=head, content=content, end=end, assistant=assistant)
    return PLAIN.format(**parts), MARKED.format(**parts)


CHATML = every("'<|im_start|>' + message['role'] + '\\n'", "message['content']", "'<|im_end|>\\n'")
QWEN = every("'<|im_start|>' + message.role + '\\n'", "message.content", "'<|im_end|>\\n'")
CALL_BEGIN = "{% generation %}"
CALL_END = "{{ '<|im_end|>\\n' }}{% endgeneration %}"

MARKS = {
    "chatml": [CHATML],
    "smollm2": [CHATML],
    "zephyr": [every("'<|' + message['role'] + '|>\\n'", "message['content']", "eos_token + '\\n'")],
    "llama3": [
        every(
            "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'",
            "message['content'] | trim",
            "'<|eot_id|>'",
        )
    ],
    "phi3": [
        every("'<|' + message['role'] + '|>\\n'", "message['content']", "'<|end|>\\n'"),
        # The token that closes a conversation is the assistant's if the last message is.
        (
            "{{ eos_token }}",
            "{% if messages[-1]['role'] == 'assistant' %}{% generation %}{{ eos_token }}{% endgeneration %}"
            "{% else %}{{ eos_token }}{% endif %}",
        ),
    ],
    "gemma": [
        (
            "{{- message['content'] | trim + '<end_of_turn>\\n' }}",
            "{%- if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<end_of_turn>\\n' }}"
            "{% endgeneration %}{% else %}{{ message['content'] | trim + '<end_of_turn>\\n' }}{% endif %}",
        )
    ],
    "mistral": [
        (
            "{{ ' ' + message['content'] + eos_token }}",
            "{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}",
        )
    ],
    "llama2": [
        (
            "{{ ' ' + message['content'] | trim + ' ' + eos_token }}",
            "{% generation %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endgeneration %}",
        )
    ],
    "alpaca": [
        (
            "{{ '### Response:\\n' + message['content'] + eos_token }}",
            "{{ '### Response:\\n' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}",
        )
    ],
    "deepseek": [
        (
            "{{ '<｜Assistant｜>' + message['content'] + eos_token }}",
            "{{ '<｜Assistant｜>' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}",
        )
    ],
    "deepseek-r1": [
        (
            "{{ '<｜Assistant｜>' + answer + eos_token }}",
            "{{ '<｜Assistant｜>' }}{% generation %}{{ answer + eos_token }}{% endgeneration %}",
        )
    ],
    "qwen2.5": [
        QWEN,
        (
            "{{ '<|im_start|>assistant' }}\n{%- if message.content %}\n{{ '\\n' + message.content }}\n{%- endif %}\n",
            "{{ '<|im_start|>assistant\\n' }}" + CALL_BEGIN + "{% if message.content %}{{ message.content }}{% endif %}",
        ),
        (
            "{{ '\\n<tool_call>\\n{\"name\"",
            "{{ '\\n' if message.content or not loop.first }}{{ '<tool_call>\\n{\"name\"",
        ),
        ("{%- endfor %}\n{{ '<|im_end|>\\n' }}\n{%- elif", "{%- endfor %}\n" + CALL_END + "\n{%- elif"),
    ],
    "qwen3": [
        ("{{ '<|im_start|>assistant\\n' }}\n{%- if loop.index0", "{{ '<|im_start|>assistant\\n' }}" + CALL_BEGIN + "{%- if loop.index0"),
        ("{%- endfor %}\n{{ '<|im_end|>\\n' }}\n{%- elif", "{%- endfor %}\n" + CALL_END + "\n{%- elif"),
    ],
}


def marked(name):
    text = (BUILT_IN / f"{name}.jinja").read_text()
    for plain, with_marks in MARKS[name]:
        assert text.count(plain) == 1, (name, plain)
        text = text.replace(plain, with_marks)
    return text


def real(alpaca, glaive):
    roles = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
    chats = []
    for row in json.loads(pathlib.Path(alpaca).read_text()):
        question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
        chats.append(("alpaca", {"messages": messages}))
    for row in json.loads(pathlib.Path(glaive).read_text()):
        messages = []
        for turn in row["conversations"]:
            message = {"role": roles[turn["from"]], "content": turn["value"]}
            if turn["from"] == "function_call":
                message["content"] = ""
                message["tool_calls"] = [{"type": "function", "function": json.loads(turn["value"])}]
            messages.append(message)
        tools = json.loads(row["tools"])
        chats.append(("glaive", {"messages": messages} | ({"tools": tools} if tools else {})))
    picked = {}
    for source, turns, tools, count in [("alpaca", 2, False, 3), ("glaive", 4, False, 1), ("glaive", 4, True, 2)]:
        fit = [c for s, c in chats if s == source and len(c["messages"]) >= turns and ("tools" in c) == tools]
        fit.sort(key=lambda chat: len(json.dumps(chat)))
        for i, chat in enumerate(fit[:count]):
            picked[f"{source} {'tools ' if tools else ''}{i}"] = chat
    return picked


def main():
    conversations = json.loads((HERE / "rendering.json").read_text())["conversations"]
    path = HERE / "tokenizer.json"
    if not path.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=384, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator([json.dumps(conversations)], trainer)
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
        path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token="<s>", eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )
    old = HERE / "encoding.json"
    if len(sys.argv) > 2:
        added = real(*sys.argv[1:3])
    else:
        added = json.loads(old.read_text())["conversations"] if old.exists() else {}
    chosen = ["one turn", "turns", "empty contents", "tools", "two calls", "thoughts", "system in the middle", "user twice"]
    lines = []
    for name in MARKS:
        template = marked(name)
        for conversation in chosen + list(added):
            chat = conversations.get(conversation) or added[conversation]
            if any("tool_calls" in m for m in chat["messages"]) and not name.startswith("qwen"):
                continue
            try:
                row = tokenizer.apply_chat_template(
                    chat["messages"],
                    tools=chat.get("tools"),
                    chat_template=template,
                    return_assistant_tokens_mask=True,
                )
            except Exception:
                continue
            plain = (BUILT_IN / f"{name}.jinja").read_text()
            ids = tokenizer.apply_chat_template(chat["messages"], tools=chat.get("tools"), chat_template=plain)["input_ids"]
            assert ids == row["input_ids"], (name, conversation)
            if len(ids) > 700 and name not in ("chatml", "phi3", "qwen3"):
                continue
            mask = "".join(map(str, row["assistant_masks"]))
            lines.append(json.dumps({"template": name, "conversation": conversation, "ids": ids, "mask": mask}))
    conversations = json.dumps(added, ensure_ascii=False)
    old.write_text('{"conversations": ' + conversations + ',\n"rows": [\n' + ",\n".join(lines) + "\n]}\n")


main()
