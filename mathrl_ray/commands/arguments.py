"""What may be typed behind the commands, and what they say of themselves with --help.

Called by __main__.py. Light: each command is imported when it runs.
"""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from mathrl_ray.core.grading.extraction import Style
from mathrl_ray.methods import Method
from mathrl_ray.sections import StageName

Add = Callable[..., Any]


def grade(options: argparse.Namespace) -> int:
    """Adds to each row format_reward, answer_reward, reward, outcome, extracted_answer, lenient_answer_correct, grading_s and grader, in
    the rows' order, with all their columns (one of such a name is kept as previous_NAME, or previous_NAME_2 and so on), and prints the
    outcomes. A row whose response is a list gets lists. Rows of verl, TRL and lm-eval are recognised by their columns; for them, and with
    --compare, each disagreement goes to OUTPUT's .disagreements file. Status 0 whatever the verdicts."""
    from mathrl_ray.commands.grade import GradeOptions, grade_file

    return grade_file(GradeOptions(**_given(options, GradeOptions)))


def check_data(options: argparse.Namespace) -> int:
    """Prints every fault with the ids of its rows: golds that are empty, cannot be read or are not equal to themselves, levels that are no
    number, duplicates, overlaps between the files (exact, and but for case, spacing and punctuation), prompts that are too long.
    --write-clean leaves out the rows of faults, of duplicates all but the first, of overlaps those of every file but the last. What is
    called possible is to be read by a person; it costs no row. Status 1 when something is wrong."""
    from mathrl_ray.commands.check_data import CheckOptions
    from mathrl_ray.commands.check_data import check_data as check

    return check(CheckOptions(**{**_given(options, CheckOptions), "columns": _columns(options.columns)}))


def preflight(options: argparse.Namespace) -> int:
    """Looks at everything that a recipe needs, before it costs anything: keys and batch arithmetic, data and golds, model, tokenizer, stop
    strings and prompts together, CPUs, GPUs, memory, KV cache, /dev/shm and disk, versions and run root on every node. Prints one table
    with verdicts and what to change, and an estimate of time, generated tokens and cost. Joins the cluster of RAY_ADDRESS where that is
    set, else looks at this machine; starts no engine. Status 1 when a check failed. Every job does the same first."""
    from mathrl_ray.commands.preflight import PreflightOptions
    from mathrl_ray.commands.preflight import preflight as look

    return look(PreflightOptions(**_given(options, PreflightOptions)))


def compare(options: argparse.Namespace) -> int:
    """Compares evaluations problem by problem: accuracies, their difference with its interval, McNemar's exact test (with several samples a
    problem a sign-flip test), problems gained and lost. Several runs: the last stage of each, or --stage. One run: its stages, or those
    that --stage names; with one --stage, the prompts that the stage was evaluated with. RUN may be an evaluation's .parquet file. It
    compares checkpoints, not methods. RUN may also be a study over seeds or a sweep (a folder with sweep.json): each seed is compared with
    the same seed of the other, and the mean difference has an interval over seeds and problems; a sweep alone compares its settings.
    Other problems, golds or graders are refused; another prompt, temperature, top-p or limit of tokens is warned of."""
    from mathrl_ray.commands.compare import CompareOptions
    from mathrl_ray.commands.compare import compare as look

    given = _given(options, CompareOptions)
    # --stage takes several words, and so the runs that are named behind it
    behind = [word for word in options.stages if word not in get_args(StageName) and Path(word).exists()]
    runs = [*options.runs, *map(Path, behind)]
    if not runs:
        raise ValueError("compare: name a run directory, two of them, or files of their evaluations")
    return look(CompareOptions(**{**given, "runs": runs, "stages": [word for word in options.stages if word not in behind]}))


def analyse(options: argparse.Namespace) -> int:
    """Shows one evaluation by level, subject and outcome, with intervals, and pass@k and maj@k where problems have several samples; then
    the failure analysis: format kept or broken by answer right or wrong, with counts, examples, likely cause, remedy and the command that
    tries it. RUN may be an evaluation's .parquet file."""
    from mathrl_ray.commands.analyse import AnalyseOptions
    from mathrl_ray.commands.analyse import analyse as look

    return look(AnalyseOptions(**_given(options, AnalyseOptions)))


def show(options: argparse.Namespace) -> int:
    """Prints what a run sampled, finished or still at work: prompts, responses, rewards with their parts, advantages, versions, staleness,
    why one was dropped. Without an option: what the run has, and a right and a wrong sample of its newest. --step, --problem and
    --outcome each choose among its responses, and go together."""
    from mathrl_ray.commands.show import ShowOptions
    from mathrl_ray.commands.show import show as look

    return look(ShowOptions(**_given(options, ShowOptions)))


def replay(options: argparse.Namespace) -> int:
    """Computes losses on the saved batch of a training step, at the weights before it: loss, gradient norm, clip fraction, and the cosines
    between their gradients. Generates nothing, starts no engine. The run's own loss comes first, beside what metrics.jsonl says. A method
    sets its own [loss] and [advantage] keys, and its advantages are taken anew from the saved rewards; all else stays the run's. Weights:
    the checkpoint before the step, or the nearest one from which the steps between are done again; a run with run.checkpoint_every = 1
    and a large run.keep_last has every one. --weights takes any other model, at which the figures are not those of the run."""
    from mathrl_ray.commands.replay import ReplayOptions
    from mathrl_ray.commands.replay import replay as look

    given = _given(options, ReplayOptions)
    if options.run is None:  # --loss takes several words, and so the run that is named behind it
        behind = [word for word in options.losses if word not in get_args(Method) and Path(word).is_dir()]
        if len(behind) != 1:
            raise ValueError("replay: name one run directory, before the options or behind them")
        given |= {"run": Path(behind[0]), "losses": [word for word in options.losses if word not in behind]}
    return look(ReplayOptions(**given))


def export(options: argparse.Namespace) -> int:
    """Writes a stage's model as a folder that transformers and vLLM open, with a model card: results with intervals, how it was trained,
    how to ask it, data and licences. It is the model that the stage's figures are of: its last checkpoint, or its best where the stage was
    stopped early. The folder appears whole; an earlier export in it is replaced, anything else is not."""
    from mathrl_ray.commands.export_model import ExportOptions, export_model

    return export_model(ExportOptions(**_given(options, ExportOptions)))


def report(options: argparse.Namespace) -> int:
    """Makes one HTML file that tells what runs did: results with intervals, curves against steps, generated tokens and time, who worked
    when, levels and subjects, outcomes, failures and examples, settings and how runs differ. It needs no network and no other file. Runs
    that are at work may be named too; several are overlaid, and those that differ by their seed alone have a mean with its band. RUN may
    be a study over seeds or a sweep, which stands for its runs. With --figures each figure and table becomes a file too. Without --output
    the page is report.html in the run's folder, of several runs in the present one."""
    from mathrl_ray.commands.report import ReportOptions
    from mathrl_ray.commands.report import report as make

    return make(ReportOptions(**_given(options, ReportOptions)))


def add_compare(commands: Any) -> None:
    add = _parser(commands, "compare", "is one run's checkpoint better than another's, on the same problems", compare)
    add("runs", nargs="*", type=Path, metavar="RUN", help="a run directory, a file of its evaluations, a study over seeds, or a sweep")
    stages = "baseline, sft, ...; default: the last one that has an evaluation; several: these stages of one run"
    add("--stage", metavar="STAGE", nargs="+", action="extend", dest="stages", default=[], help=stages)
    _which_prompt(add)
    add("--shared", action="store_true", help="compare the problems that both have, where each has some of its own")
    add("--ids", metavar="N", type=_count, dest="num_ids", default=10, help="ids of problems gained and lost to show (10)")
    _for_programs(add)


def add_analyse(commands: Any) -> None:
    add = _parser(commands, "analyse", "an evaluation by level, subject and outcome, and what its failures suggest", analyse)
    add("run", type=Path, metavar="RUN", help="a run directory, or a file of its evaluations")
    _which_evaluation(add)
    add("--k", metavar="K", type=_count, nargs="+", dest="ks", default=(1, 4, 8), help="of pass@k and maj@k (1 4 8)")
    add("--examples", metavar="N", type=int, dest="num_examples", default=10, help="of each kind of failure (10)")
    _limits(add, "one answer")
    _for_programs(add)


def add_report(commands: Any) -> None:
    add = _parser(commands, "report", "one HTML file of what runs did, also while they run; figures for a paper", report)
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run directory, a study over seeds, or a sweep")
    add("--output", metavar="FILE", type=Path, default=None, help="the page; default: RUN/report.html, of several runs ./report.html")
    add(
        "--figures",
        metavar="DIR",
        type=Path,
        default=None,
        help="also write figures (SVG, PDF, PNG, CSV) and tables (Markdown, LaTeX, CSV)",
    )


def add_show(commands: Any) -> None:
    add = _parser(commands, "show", "prompts, responses and rewards of a run, also while it is at work", show)
    add("run", type=Path, metavar="RUN", help="a run directory")
    _text(add, "--stage", "STAGE", "sft, grpo, ...; default: the last one that has what is asked for, with --problem all")
    add("--step", metavar="N", type=_count, default=None, help="a training step (a round of expert iteration): all that it took")
    one_problem = "one problem through the whole run: groups, validations, evaluations"
    add("--problem", metavar="ID", type=_word, default=argparse.SUPPRESS, help=one_problem)
    one_outcome = "correct, wrong, no_answer, ... of the newest evaluation or step"
    add("--outcome", metavar="NAME", type=_word, default=argparse.SUPPRESS, help=one_outcome)
    add("--limit", metavar="K", type=_none_or_more, default=None, help="responses to print (10; of a problem 40); 0: all")
    add("--full", action="store_true", help="print prompts and responses whole, however long")
    add("--json", action="store_true", help="print all that is found as JSON, one object a response")


def add_replay(commands: Any) -> None:
    add = _parser(commands, "replay", "several losses and their gradients on a saved batch, without generation", replay)
    add("run", nargs="?", type=Path, metavar="RUN", help="a run directory")
    add("--step", metavar="N", type=_count, required=True, help="the training step whose batch is taken")
    losses = "logged (the run's own), a method (grpo, dr_grpo, dapo, ...), or path/file.py:function [name=value ...] as check-loss takes it"
    add("--loss", metavar="LOSS", nargs="+", action="extend", dest="losses", default=[], help=losses)
    _text(add, "--stage", "STAGE", "grpo, which is the default, is the one stage that has such batches")
    add("--weights", metavar="FOLDER", type=Path, default=None, help="any model folder in place of the weights before the step")
    add("--json", action="store_true", help="print all of it as JSON")


def _word(text: str) -> str:
    """Not "", which a script's unset variable is, and which would choose nothing."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _none_or_more(text: str) -> int:
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number}: 0 (all) or more")
    return number


def _which_evaluation(add: Add) -> None:
    _text(add, "--stage", "STAGE", "baseline, sft, ...; default: the last one that has an evaluation")
    _which_prompt(add)


def _which_prompt(add: Add) -> None:
    _text(add, "--prompt", "NAME", "a prompt of eval.prompts; default: the first, which gives a stage's figures")


def _for_programs(add: Add) -> None:
    add("--json", action="store_true", help="print all of it as JSON")
    add("--seed", metavar="N", type=int, default=0, help="of the bootstrap and of drawn sign flips (0)")


def add_export(commands: Any) -> None:
    add = _parser(commands, "export", "a stage's model as a folder with a model card", export)
    add("run", type=Path, metavar="RUN", help="a run directory, <run.root>/<run.name>")
    add("--stage", default="", choices=get_args(StageName), help="default: the last one that trained and has finished")
    add("--output", metavar="DIR", type=Path, required=True, help="the folder, which is made")


def add_preflight(commands: Any) -> None:
    add = _parser(commands, "preflight", "can a recipe run on these machines, how long, and at what cost", preflight)
    add("recipe", type=Path, metavar="RECIPE.toml")
    add("overrides", nargs="*", default=[], metavar="section.key=value", help="changes one setting of the recipe")
    add("--price-per-hour", metavar="P", type=_price, default=0.0, help="of all machines of the run; shows what it would cost")


def add_grade(commands: Any) -> None:
    add = _parser(commands, "grade", "grade the responses of a file again, and compare graders", grade)
    _text(add, "--input", "FILE", ".jsonl or .parquet with a response and a gold a row; verl's, TRL's and lm-eval's too", required=True)
    add("--output", metavar="FILE", type=Path, required=True, help=".jsonl or .parquet: the same rows, and their grades")
    add("--style", default="r1_zero", choices=get_args(Style), help="where the answer is: in the tags (default), or in the last box")
    _limits(add, "one answer")
    _text(add, "--response-field", "COLUMN", "default: response, or the system's own; a list is several samples")
    _text(add, "--gold-field", "COLUMN", "default: gold, else answer, or the system's own; a list is alternatives")
    _text(add, "--id-field", "COLUMN", "default: id, else problem_id, else source, else file:line")
    _text(add, "--golds", "DATA", "problems with golds, for rows that hold a prompt and no gold")
    _text(add, "--compare", "GRADER", "a second grader: math-verify, exact, module:function or path/file.py:function")


def add_check_data(commands: Any) -> None:
    add = _parser(commands, "check-data", "what is wrong with files of problems: golds, duplicates, overlaps", check_data)
    add("files", nargs="+", metavar="FILE", help=".jsonl, .parquet, or a name for `datasets`; name the test set last")
    add("--write-clean", metavar="OUT", type=Path, help="write the good rows (several files: into a folder), and what was left out and why")
    add("--max-prompt-tokens", metavar="N", type=int, default=0, help="report prompts with more tokens than this; needs --tokenizer")
    _text(add, "--tokenizer", "FOLDER", "a model's folder, whose tokenizer counts")
    add("--prompt", metavar="NAME", default="r1_zero", help="around each problem: r1_zero (default), question_only, chat, a text file")
    add("--columns", metavar="FIELD=COLUMN", action="append", default=[], help="where a column has no common name: gold=final, ...")
    _limits(add, "one gold")


def _parser(commands: Any, name: str, summary: str, command: Callable[..., int]) -> Add:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=inspect.getdoc(command))
    return parser.add_argument


def _text(add: Add, option: str, metavar: str, meaning: str, *, required: bool = False) -> None:
    add(option, metavar=metavar, default="", required=required, help=meaning)


def _limits(add: Add, item: str) -> None:
    add("--workers", metavar="N", type=_positive, dest="num_workers", default=0, help="grading processes; default: one a core")
    add("--limit-s", metavar="S", type=float, default=5.0, help=f"time for {item}; the process that exceeds it is ended (5)")


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= price < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a price is 0 or more")
    return price


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1 worker")
    return number


def _count(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: must be at least 1")
    return number


def _given(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name in kind.__dataclass_fields__}


def _columns(pairs: Sequence[str]) -> dict[str, str]:
    """{"gold": "final"} from ["gold=final"]."""
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise ValueError(f"--columns {wrong[0]}: give FIELD=COLUMN, for example gold=final_answer")
    return {name: column for name, _, column in (pair.partition("=") for pair in pairs)}
