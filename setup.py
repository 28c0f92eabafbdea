"""What pyproject.toml cannot say: a folder whose installed name is another, and data from outside of it.

`model_check/` is installed as the package `palimpsest_model_check`, its models with it and `spec/` as its
`_data/spec`. An editable install maps the names to the folders; the code then finds `spec/` beside its own.
"""

from pathlib import Path

from setuptools import find_namespace_packages, setup

CHECK = "palimpsest_model_check"
FOLDERS = {CHECK: "model_check", f"{CHECK}._data.spec": "spec"}

DATA = ["*.tla", "*.cfg", "*.toml", "*.json", "*.md", "*.java", "*.class", "*.txt", "*.html", "*.css", "*.js"]

renamed = {package: folder for package, folder in FOLDERS.items() if Path(folder).is_dir()}
below = find_namespace_packages("model_check") if CHECK in renamed else []

setup(
    packages=[
        *find_namespace_packages("impl", include=["palimpsest", "palimpsest.*"]),
        *renamed,
        *(f"{CHECK}.{package}" for package in below),
    ],
    package_dir={"": "impl", **renamed},
    package_data={"palimpsest": ["py.typed"], "": DATA},
    include_package_data=False,
    exclude_package_data={"": ["__pycache__/*"]},
)
