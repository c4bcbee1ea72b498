"""The error of an integration whose framework is not installed."""

import subprocess
import sys

import pytest

_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
try:
    import penstock.integrations.{module}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "packages", "install"),
    [
        ("fastapi", ["fastapi", "starlette"], "fastapi"),
        ("starlette", ["starlette"], "starlette"),
        ("flask", ["flask"], "flask"),
        ("django", ["django", "asgiref"], "django"),
        ("django_worker", ["django", "asgiref"], "django"),
        ("opentelemetry", ["opentelemetry"], "'penstock[opentelemetry]'"),
        ("prometheus", ["prometheus_client"], "'penstock[prometheus]'"),
    ],
)
def test_a_missing_framework_is_named_with_what_to_install(module: str, packages: list[str], install: str):
    program = _WITHOUT.format(module=module, packages=packages)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    needed = packages[0]
    expected = f"this integration of Penstock needs {needed}, which is not installed: pip install {install}\n"
    assert done.stdout == expected


def test_another_import_error_is_passed_on():
    program = _WITHOUT.format(module="flask", packages=["werkzeug"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("No module named 'werkzeug")
