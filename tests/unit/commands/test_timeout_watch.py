from mathrl_ray.commands.timeout_watch import TimeoutWatch
from mathrl_ray.types import Grade

HUNG = Grade(0.0, 0.0, 0.0, "grader_timeout", None)
KNOWN = Grade(0.0, 0.0, 0.0, "grader_timeout", None, from_quarantine=True)
FINE = Grade(1.0, 1.0, 1.0, "correct", "5")


def watch():
    return TimeoutWatch("mine.py:judge", limit_s=5.0, num_requests=103, num_workers=2)


def test_the_third_timeout_in_a_row_is_said_with_function_limit_and_worst_time(capsys):
    watching = watch()
    watching.see([HUNG])
    watching.see([HUNG])
    assert capsys.readouterr().err == ""
    watching.see([HUNG])
    said = capsys.readouterr().err
    # 100 are left, two at a time, 5 s each: 250 s = 4.2 min
    assert said.count("\n") == 1
    assert all(word in said for word in ("mine.py:judge", "limit of 5 s", "100 left", "4.2 min", "2 processes"))


def test_it_is_said_once_and_a_grade_in_between_begins_the_count_again(capsys):
    watching = watch()
    watching.see([HUNG, HUNG, FINE, HUNG, HUNG, FINE])
    assert capsys.readouterr().err == ""
    watching.see([HUNG, HUNG, KNOWN, KNOWN])  # what is known to hang takes no time
    assert capsys.readouterr().err == ""
    watching.see([HUNG] * 20)
    assert capsys.readouterr().err.count("warning") == 1
