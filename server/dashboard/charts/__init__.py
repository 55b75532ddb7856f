"""Charts as markup: pure functions from data to a `<figure>` with an SVG and the numbers behind it.

No style stands in the markup: classes alone, so that a strict content security policy holds and light and
dark are the style sheet's matter. Names come from whoever uses the server: all text passes `markup.node`.
"""
