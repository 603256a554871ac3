"""The short text that the demo's tokenizer and its successor table are made from. Written for this project."""

TEXT = """\
The river leaves the hills before the sun is up, and the mill by the bridge begins to turn. The miller opens the gate, \
the water finds the wheel, and the old stones wake with a low sound. By the time the baker comes down the lane there \
is flour in the sacks and bread in the oven of every house that has an oven.

A small boat comes up the river twice a week. It brings salt, rope and letters, and it takes away cheese, wool and the \
names of the people who want to leave. The captain knows each stone under the water. She says that a river is a road \
that never stays in the same place, and that a good captain asks the water before she asks the map.

In the tower on the hill there lives a keeper of clocks. He has nine clocks and none of them agree. When people ask \
him for the time he gives them the middle one, and when they ask him why, he says that a single clock is always right \
and that nine clocks are nearly always wrong, but that only the nine can tell you how wrong they are.

The children of the village play a game with a long string and three bells. One child thinks of a word, another child \
guesses the next word, and a bell rings for each guess that was right. A quick child guesses seven words at once and \
lets the others count how many of them can stay. Nobody waits for a single word when seven may be had for one price.

When the winter comes the river is slow and the wheel is still. The miller mends the gate, the baker sleeps an hour \
longer, and the captain draws a new map from the words of the water. The keeper of the clocks winds all nine of them \
in the evening, one after the other, and listens until the first of them stops.

There is an engine under the bridge that nobody built. It hums when the rain is near and it is quiet when the snow \
falls. The old people say that it reads the river as a child reads a book, one word and then the next word, and that \
it knows the end of every story but will only tell you the part that you can check for yourself.

A traveler once asked the engine for the shortest way to the sea. It gave her seven turns. She took the first turn and \
it was right, she took the second turn and it was right, and at the third turn she met a wall. So she walked back one \
turn, asked again, and had seven new turns for the price of one question. That is how she came to the sea before the \
others, who had asked for one turn at a time and had always been right.

In the spring the people meet on the bridge and eat bread and cheese. The captain tells what she has seen, the keeper \
tells what time it may have been, and the miller tells how much flour there is. Then the bells ring, the small boat \
leaves with the letters, and the river goes down to the sea with all the words that it has heard.
"""
