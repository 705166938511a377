"""gatewise inside other training frameworks; nothing here is imported by `import gatewise`.

lightning   SparsifierCallback for a Trainer of Lightning
"""
