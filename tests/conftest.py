import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # tests share fakes.py and samples.py

# Two shared cores: an example may take long now and then without anything being wrong.
settings.register_profile("shared_cores", deadline=None)
settings.load_profile("shared_cores")
