"""A process is suspended past its lease or its term, and resumes as if nothing had happened."""

import signal

from tests.chaos.stall import sleep_past_a_lease


async def test_a_worker_that_slept_past_its_lease_is_refused_and_the_new_result_stands(yard, tmp_path):
    await sleep_past_a_lease(yard, tmp_path)


async def test_a_leader_that_slept_past_its_term_writes_nothing_more(yard):
    """The other one takes the term; whatever the sleeper had planned is refused, and it becomes a follower."""
    nodes = [yard.serve(), yard.serve()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    for _ in range(2):
        leader = await yard.leader(*nodes)
        [other] = [node for node in nodes if node is not leader]
        await yard.freeze(leader)
        await yard.leader(other)
        await yard.fires_on()
        leader.signal(signal.SIGCONT)
        await yard.fires_on()
    await yard.stop(*nodes)

    await yard.judge(first_due=first_due)
    won = yard.told().terms
    terms = [each.term for each in won]
    assert terms == sorted(terms)
    assert len(set(terms)) >= 3
    holders = {(each.term, each.pid) for each in won}
    assert len(holders) == len(set(terms)), "a term has one holder, who may doubt and trust again"
