"""Prompt templates: the text that stands around a question.

Called by the stages that build prompts and by the commands that grade answers again. Pure: knows no tokenizer, no recipe, no file.
A template is a fixed interface: one changed character changes a base model's accuracy, so each is literal and names its source.
"""

R1_ZERO = """\
A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant first thinks about \
the reasoning process in the mind and then provides the User with the answer. The reasoning process is enclosed within \
<think> </think> and answer is enclosed within <answer> </answer> tags, respectively, i.e., <think> reasoning process here </think> \
<answer> answer here </answer>.
User: {question}
Assistant: <think>"""
"""DeepSeek-R1-Zero's template (DeepSeek-AI 2025, table 1) as Stanford CS336 assignment 5 has it in prompts/r1_zero.prompt.

It ends inside the think tag: the response closes `</think>`, then writes `<answer> ... </answer>`. No newline at the end.
"""

PROMPTS: dict[str, str] = {"r1_zero": R1_ZERO}
"""Template by name; `{question}` stands once in each."""


def render(prompt_name: str, question: str) -> str:
    """The full prompt text for one question, which may itself hold braces (LaTeX does).

    Raises:
        ValueError: there is no template of this name.

    >>> render("r1_zero", "What is 1+1?").splitlines()[1:]
    ['User: What is 1+1?', 'Assistant: <think>']
    """
    if prompt_name not in PROMPTS:
        raise ValueError(f"there is no prompt {prompt_name!r}: set eval.prompts to some of {', '.join(sorted(PROMPTS))}")
    # Not str.format, which would take a template's other braces (\boxed{}) for fields.
    return PROMPTS[prompt_name].replace("{question}", question)
