"""A model as one safetensors file with its configuration in the metadata, read without running anything."""
