"""A view that asks for a run once its own transaction is written."""

from functools import partial

from django.db import transaction
from django.http import JsonResponse

from shop.jobs import app, confirm
from shop.models import Order


@transaction.atomic
def place(request):
    order = Order.objects.create()
    run_id = f"confirm-{order.pk}"  # asked twice, it is one run
    transaction.on_commit(partial(app.blocking.enqueue, confirm, {"order": order.pk}, id=run_id))
    return JsonResponse({"order": order.pk, "run": run_id}, status=202)
