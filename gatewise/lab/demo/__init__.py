"""`gatewise demo`: the tour of the library on text that every Python carries.

text    the text and its split
model   a language model and a training loop, as a user would write them
speed   how long a word takes
run     the stages and their order
view    progress bars and the table
"""
