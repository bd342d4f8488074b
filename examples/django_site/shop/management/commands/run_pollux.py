"""`python manage.py run_pollux`: plan and run the site's jobs until SIGTERM or Ctrl-C."""

import logging

from django.core.management.base import BaseCommand

from shop.jobs import app


class Command(BaseCommand):
    help = "Plan and run the jobs of the site until it gets a signal to stop."

    def handle(self, *_, **__):
        logging.basicConfig(level=logging.INFO)
        app.run()  # SIGTERM drains: running handlers may finish within the grace
