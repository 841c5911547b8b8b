r"""Prompt templates: the text that stands around a question, and what follows from the choice of one.

Called by the stages that build prompts, by data/ (which question a trace's prompt asks) and by the commands that grade answers again. Pure:
knows no recipe and no file; a tokenizer comes as an argument. A template is a fixed interface: one changed character changes a base
model's accuracy, so each is literal and names its source.

    name            text around the question            a response ends at    graded by
    r1_zero         DeepSeek-R1-Zero's conversation     </answer>             the tags
    question_only   none                                EOS                   the last \boxed{...}
    chat            the model's own chat template       EOS                   the last \boxed{...}
    a file          its text                            </answer> and the tags where the text names <answer>, else EOS and the box
"""

from dataclasses import dataclass
from typing import Any

from mathrl_ray.types import GradingStyle

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

QUESTION_ONLY = "{question}"
"""CS336 assignment 5's prompts/question_only.prompt; a base model that was trained on boxed solutions answers in a box."""

CHAT_MESSAGE = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."
"""The user's message inside the model's chat template; the sentence is that of Qwen2.5-Math's model card."""

PROMPTS: dict[str, str] = {"r1_zero": R1_ZERO, "question_only": QUESTION_ONLY}
"""Whole prompts by name; `{question}` stands once in each. The third name, chat, needs a tokenizer."""
PROMPT_NAMES = (*PROMPTS, "chat")
QUESTION = "{question}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a run. Made by `named_prompt` or `own_prompt`.

    Example: Prompt("question_only", "{question}")
    """

    name: str
    """What evaluation rows and file names call it."""
    template: str
    """Holds `{question}` once; of the chat prompt it is the user's message."""

    @property
    def style(self) -> GradingStyle:
        return grading_style(self.name, self.template)

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a response and stay in it; () where only EOS does."""
        return ("</answer>",) if self.style == "r1_zero" else ()


def named_prompt(name: str) -> Prompt:
    """The prompt of a name.

    Raises:
        ValueError: there is no prompt of this name.
    """
    if name == "chat":
        return Prompt(name, CHAT_MESSAGE)
    if name not in PROMPTS:
        raise ValueError(
            f"there is no prompt {name!r}: set data.prompt or eval.prompts to some of {', '.join(PROMPT_NAMES)}, or to a text file's path"
        )
    return Prompt(name, PROMPTS[name])


def own_prompt(name: str, text: str) -> Prompt:
    """A prompt from a user's own text. One newline at its end is not part of it, since editors add one that nobody sees.

    Raises:
        ValueError: the name is taken, or `{question}` does not stand in the text exactly once.
    """
    if name in PROMPT_NAMES:
        raise ValueError(f"{name!r} is the name of a prompt that comes with mathrl_ray: rename the file")
    if (count := text.count(QUESTION)) != 1:
        raise ValueError(f"{QUESTION} stands {count} times in it; it must stand there exactly once, where the problem's text goes")
    return Prompt(name, text.removesuffix("\n"))


def grading_style(prompt_name: str, template: str = "") -> GradingStyle:
    """How the answers to a prompt are graded: by the tags of r1_zero, or by the last box.

    Args:
        prompt_name: one of PROMPT_NAMES, or the name of a user's own prompt.
        template: the own prompt's text: tags where it names `<answer>`.

    >>> grading_style("r1_zero"), grading_style("chat"), grading_style("mine", "Q: {question} Reply in <answer> tags.")
    ('r1_zero', 'question_only', 'r1_zero')
    """
    match prompt_name:
        case "r1_zero":
            return "r1_zero"
        case "question_only" | "chat":
            return "question_only"
        case _:
            return "r1_zero" if "<answer>" in template else "question_only"


def fill(prompt: Prompt, question: str, tokenizer: Any = None) -> str:
    """The full prompt text for one question, which may itself hold braces (LaTeX does).

    Args:
        prompt: which.
        question: the problem's text.
        tokenizer: of transformers; only the chat prompt asks it, for the model's chat template.

    Raises:
        ValueError: a chat prompt, and the tokenizer has no chat template.
    """
    # Not str.format, which would take a template's other braces (\boxed{}) for fields.
    text = prompt.template.replace(QUESTION, question)
    if prompt.name != "chat":
        return text
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            'data.prompt or eval.prompts = "chat": the tokenizer in the folder of model.path has no chat template. '
            "Choose r1_zero or question_only, or name a text file."
        )
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)


def question_in(prompt: Prompt, text: str) -> str | None:
    """The question that a full prompt text asks: the inverse of `fill`; None where the text is none of this prompt's.

    None for every chat prompt, whose text only the tokenizer knows.

    >>> question_in(named_prompt("r1_zero"), render("r1_zero", "1+1?"))
    '1+1?'
    """
    before, after = prompt.template.split(QUESTION)
    inside = len(text) >= len(before) + len(after) and text.startswith(before) and text.endswith(after)
    return text[len(before) : len(text) - len(after)] if inside and prompt.name != "chat" else None


def render(prompt_name: str, question: str) -> str:
    """`fill` for a prompt of PROMPTS, by its name.

    Raises:
        ValueError: there is no template of this name.

    >>> render("r1_zero", "What is 1+1?").splitlines()[1:]
    ['User: What is 1+1?', 'Assistant: <think>']
    """
    return fill(named_prompt(prompt_name), question)
