"""The package's version, which the attach protocol tells the rank."""

__version__ = "0.1.0"
