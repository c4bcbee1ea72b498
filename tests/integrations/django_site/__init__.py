"""A Django project with tasks, as small as one can be."""
