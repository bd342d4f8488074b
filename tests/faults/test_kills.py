"""Does anything get lost, or happen twice, when processes on a networked store are killed at any moment?"""

import os

from tests.chaos.storm import kill_at_random

KILLS = int(os.environ.get("POLLUX_CHAOS_KILLS", "60"))
SEED = int(os.environ.get("POLLUX_CHAOS_SEED", "20264"))


async def test_sixty_kills_under_load_lose_nothing_and_double_nothing(far_yard):
    await kill_at_random(far_yard, kills=KILLS, seed=SEED)
