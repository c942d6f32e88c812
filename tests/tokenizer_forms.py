"""Small tokenizers that treat the space before a word in all usual forms; each character is a token, some pairs too."""

import string

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPACE = "\u2581"
SPECIAL = ["<unk>", "<s>", "</s>"]
MERGES = [(SPACE, "1"), (SPACE, "2"), (SPACE, "O"), ("i", "s"), (SPACE, "is"), ("\n", "\n"), (SPACE + "1", "4")]
CHARACTERS = [SPACE, *string.printable.replace(" ", "")]
VOCABULARY = {piece: number for number, piece in enumerate([*SPECIAL, *CHARACTERS, *map("".join, MERGES)])}
PREPEND, REPLACE = normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)
NORMALIZERS = {
    "llama": normalizers.Sequence([PREPEND, REPLACE]),
    "replace_first": normalizers.Sequence([REPLACE, normalizers.Sequence([normalizers.NFC(), PREPEND])]),
    "prepend_and_metaspace": normalizers.Sequence([PREPEND, REPLACE]),
    "prepend_unigram": normalizers.Sequence([PREPEND, REPLACE]),
    "never": None,
    "strip": normalizers.Sequence([normalizers.Strip(), normalizers.NFC()]),
}
EXACT = tuple(NORMALIZERS)  # whose prompts are the whole text's tokens


def make_tokenizer(form: str, *, begins: bool = True, ends: bool = False) -> Tokenizer:
    """Build a tokenizer whose texts begin with <s> and end with </s> if it is so asked."""
    scheme = {"first": "first", "never": "never", "strip": "never"}.get(form, "always")
    model = models.BPE(VOCABULARY, MERGES, unk_token="<unk>")
    if "unigram" in form:
        model = models.Unigram([(piece, -float(not piece.isalpha())) for piece in VOCABULARY], 0, False)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    if form in NORMALIZERS and NORMALIZERS[form] is not None:
        tokenizer.normalizer = NORMALIZERS[form]
    if form in ("llama", "replace_first", "prepend_unigram"):
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\n+"), "isolated")
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), *strip])
    tokenizer.add_special_tokens(SPECIAL)
    parts = [*["<s>"] * begins, "$A", *["</s>"] * ends]
    special = [(token, VOCABULARY[token]) for token in SPECIAL]
    tokenizer.post_processor = processors.TemplateProcessing(single=" ".join(parts), special_tokens=special)
    tokenizer.encode_special_tokens = True
    return tokenizer
