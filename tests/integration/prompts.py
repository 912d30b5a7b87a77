"""The real prompts of the oracle tests: chat and plain, several languages, code and emoji.

Random letters would prove nothing: their logits tie and a wrong slot can hide behind a coin flip.
"""

CHAT = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about rain on a tin roof.",
    "Schreibe einen kurzen Satz über den Rhein.",
    "¿Cuál es la montaña más alta del mundo?",
    "Donne-moi trois idées pour un dîner rapide.",
    "請用一句話介紹臺北。",
    "日本で一番高い山は何ですか？",
    "Напиши одно предложение о зиме.",
    "اكتب جملة قصيرة عن البحر.",
    "Reply with your favourite emoji and say why. 🙂🚀",
    "Translate 'good morning, my friend' to Italian.",
    "List the first five prime numbers.",
)

PLAIN = (
    "Once upon a time, in a village at the edge of a great forest,",
    "The three laws of thermodynamics state that",
    "def fibonacci(n: int) -> int:\n    ",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "import numpy as np\n\n# Compute the mean of each row\nmatrix = np.array([[1, 2], [3, 4]])\n",
    "El perro corrió por la playa y",
    "Die Eisenbahn fuhr langsam durch das Tal, während",
    "Ingredients:\n- 2 eggs\n- 100 g of flour\n- a pinch of salt\n\nMethod:\n1.",
    "🎉🎂 Happy birthday! Today we",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "In 1969, Apollo 11",
    "Q: How many legs does a spider have?\nA:",
)

LONG = (
    "The lighthouse stood on the last rock before the open sea, and for as long as anyone in the village could "
    "remember its light had never failed. Each evening the keeper climbed two hundred and eleven steps with a can"
    " of oil in one hand and a book in the other. He read about distant harbours, about storms that tore masts "
    "from their decks, about captains who swore they had seen cities shining under the waves. When the lamp was "
    "lit he would sit by the window and write down every ship that passed: her name, her flag, the hour, the "
    "weather. There were forty-two such notebooks on the shelf when the new teacher arrived and asked whether her"
    " pupils might see them. The keeper, who had not spoken to a child in years, was so surprised that he said "
    "yes. They came on a Thursday, nineteen of them, with muddy boots and a hundred questions. Which ship was the"
    " oldest? Which had come from the farthest place? Had any of them sunk? He answered what he could, and where "
    "he could not he gave them the notebooks and let them look. By noon they had found a schooner that passed "
    "every spring for thirty years, always on the same day, and then never again. "
)
"""Cut to an exact number of tokens by the tests that need every length around a boundary."""
