"""What transformers makes of chats.jsonl with SmolLM2's template: writes preview.jsonl, which `data preview --json` must equal.

    python make_preview.py    # transformers 5.24

The tokenizer is the small one of crates/data/tests/golden/chat. The template is the built-in one, with `{% generation %}` put around
what the assistant says and the end of its turn; without these marks it renders the same.
"""

import json
import pathlib

from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
DATA = HERE / "../../../data"
PLAIN = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
SAID = "{{ message['content'] + '<|im_end|>\\n' }}"
MARKED = (
    "{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
    + SAID
    + "{% endgeneration %}{% else %}"
    + SAID
    + "{% endif %}"
)

tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tests/golden/chat/tokenizer.json"), eos_token="<|im_end|>")
template = (DATA / "src/chat/templates/smollm2.jinja").read_text()
assert template.count(PLAIN) == 1
lines = []
for line in (HERE / "chats.jsonl").read_text().splitlines():
    messages = json.loads(line)["messages"]
    row = tokenizer.apply_chat_template(
        messages, chat_template=template.replace(PLAIN, MARKED), return_assistant_tokens_mask=True, return_dict=True
    )
    ids = row["input_ids"]
    assert ids == tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True)["input_ids"]
    labels = [i if learnt else -100 for i, learnt in zip(ids, row["assistant_masks"])]
    lines.append(json.dumps({"input_ids": ids, "labels": labels}))
(HERE / "preview.jsonl").write_text("\n".join(lines) + "\n")
