"""Where this Django's tasks come from: Django 6 brings them, before that the package django-tasks does."""

from __future__ import annotations

try:
    from django import tasks
    from django.tasks import exceptions, signals
except ImportError:
    import django_tasks as tasks
    from django_tasks import exceptions, signals

task = tasks.task
BUILT_IN = tasks.__name__ == "django.tasks"

__all__ = ["BUILT_IN", "exceptions", "signals", "task", "tasks"]
