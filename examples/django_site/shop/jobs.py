"""The jobs of the site: the one `Pollux` that views and the command share."""

import atexit

from django.conf import settings
from django.db import close_old_connections

from pollux import Pollux, every

app = Pollux(settings.POLLUX_STORE, name="shop")
atexit.register(app.blocking.close)


@app.job(retry={"attempts": 3, "base": "2s"})
def confirm(ctx, order: int):
    """A plain function runs in a thread, where the ORM may be used."""
    from shop.models import Order

    close_old_connections()  # one of a thread that rested long may be dead
    Order.objects.filter(pk=order).update(confirmed=True)
    return {"confirmed": order}


@app.job(every("10s"))
def count(ctx):
    from shop.models import Order

    close_old_connections()
    return {"open": Order.objects.filter(confirmed=False).count()}
