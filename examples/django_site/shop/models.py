"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    confirmed = models.BooleanField(default=False)

    def __str__(self):
        return f"order {self.pk}"
