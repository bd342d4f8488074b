"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    confirmed = models.BooleanField(default=False)
