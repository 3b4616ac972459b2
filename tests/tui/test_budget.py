from mptui.tui.work import Budget


def test_drawing_takes_no_more_than_its_share():
    worked, now, drawn = 0.0, 0.0, 0
    budget = Budget(0.02, 2.0, lambda: worked, lambda: now)
    for _ in range(4000):  # a thousand seconds of four polls each
        now += 0.25
        if budget.allows():
            drawn += 1
            worked += 0.01
    assert worked <= 0.02 * now + 0.01
    assert worked >= 0.01 * now


def test_a_cheap_drawing_comes_at_each_look():
    worked, now, drawn = 0.0, 0.0, 0
    budget = Budget(0.02, 2.0, lambda: worked, lambda: now)
    for _ in range(100):
        now += 0.25
        if budget.allows():
            drawn += 1
            worked += 0.001
    assert drawn == 100


def test_a_busy_thread_still_draws():
    worked, now, drawn = 0.0, 0.0, 0
    budget = Budget(0.02, 2.0, lambda: worked, lambda: now)
    for _ in range(400):
        now += 0.25
        worked += 0.2
        drawn += budget.allows()
    assert 45 <= drawn <= 55
