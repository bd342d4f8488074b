"""The app of `node.py` as an operator starts it: `pollux serve --app tests.chaos.served:app`, and `pollux worker`.

The store and the ledger come from the environment.
"""

import os

from tests.chaos.ledger import Ledger
from tests.chaos.node import listen, make_app

LEDGER = "CHAOS_LEDGER"

app = make_app(os.environ["POLLUX_STORE"], (ledger := Ledger(os.environ[LEDGER])))
listen(app, ledger)
