"""A row of each task with the keys that are read: for the help, the README, and people who write their own rows.

The publishers' variants (other keys, labels as numbers, text or booleans, tables) are in rows.py and formats.py.
"""

from __future__ import annotations

EXAMPLES = {
    "lambada": '{"text": "Ann fed the goat. Ben fed the goat"}',
    "race_h": (
        '{"article": "Bees make honey.", "questions": ["Who makes honey?"], '
        '"options": [["Ants", "Bees", "Cows", "Dogs"]], "answers": ["B"]}'
    ),
    "boolq": '{"passage": "Otters live in the Ask.", "question": "do otters live in the Ask", "label": true}',
    "winogrande": (
        '{"sentence": "The rope broke because the _ was heavy.", "option1": "bucket", "option2": "rope", "answer": "1"}'
    ),
    "hellaswag": (
        '{"activity_label": "Shaving", "ctx_a": "A man lathers his chin.", "ctx_b": "he", '
        '"endings": ["drives.", "shaves.", "sings.", "swims."], "label": 1}'
    ),
    "piqa": '{"goal": "To dry a shirt,", "sol1": "hang it up.", "sol2": "put it in water.", "label": 0}',
    "anli_r2": '{"premise": "The Vik Line had four ships.", "hypothesis": "It had ships.", "label": "e"}',
    "hans": (
        '{"sentence1": "The cook saw the boy.", "sentence2": "The boy saw the cook.", "gold_label": "non-entailment", '
        '"heuristic": "lexical_overlap", "subcase": "ln_subject/object_swap", "template": "temp1"}'
    ),
    "wic": (
        '{"sentence1": "The keys are in a tin.", "sentence2": "The key to the riddle.", "start1": 4, "end1": 8, '
        '"label": false}'
    ),
}
"""A line of a JSON-lines file; for RACE, a whole file. HANS is also published as a table."""


def rows_help() -> str:
    """The examples for the end of a command's help, one line each."""
    lines = "\n\n".join(f"{task}: {row}" for task, row in EXAMPLES.items())
    return (
        f"Rows of your own: DIR/TASK/test.jsonl (RACE: DIR/race_h/test/high/*.txt), a JSON object per row.\n\n{lines}"
    )
