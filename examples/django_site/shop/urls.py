"""Where the view is."""

from django.urls import path

from shop.views import place

urlpatterns = [path("orders/", place)]
