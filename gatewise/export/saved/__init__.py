"""A compact model as config.json and model.safetensors: written as a whole, read without running anything."""
