"""Words of the generated language pair: a small German with real inflection, and its English.

English words start with a consonant sound wherever 'a' may stand before them, so that 'an' is never needed.
"""

from typing import NamedTuple


class Noun(NamedTuple):
    gender: str  # 'm', 'f' or 'n'
    singular: str
    plural: str
    english: str
    english_plural: str


class Verb(NamedTuple):
    """Forms of both languages. A separable verb has a particle, which main clauses put last: 'lädt … ein'."""

    objects: str  # keys of OBJECTS; '-' = takes none
    singular: str
    plural: str
    infinitive: str
    participle: str
    english_singular: str
    english: str
    english_participle: str
    particle: str = ""


class NounClass(NamedTuple):
    """Nouns, and the adjectives that go with them: German stem and English."""

    nouns: tuple[Noun, ...]
    adjectives: tuple[tuple[str, str], ...]


def _noun_class(nouns: str, adjectives: str) -> NounClass:
    """Every adjective's stem takes the endings -e -en -er -es unchanged."""
    words = adjectives.split()
    return NounClass(
        tuple(Noun(*line.split()) for line in nouns.strip().splitlines()), tuple(zip(words[::2], words[1::2]))
    )


def _verbs(text: str) -> tuple[Verb, ...]:
    rows = [line.split() for line in text.strip().splitlines()]
    return tuple(Verb._make([*row[:3], row[2], *row[3:], ""]) for row in rows)


def _separable(text: str) -> tuple[Verb, ...]:
    """kinds of object, particle, singular and plural without it, participle, English forms"""
    rows = [line.split() for line in text.strip().splitlines()]
    return tuple(Verb._make([row[0], row[2], row[3], row[1] + row[3], *row[4:], row[1]]) for row in rows)


PEOPLE = _noun_class(
    """
m Mann Männer man men
f Frau Frauen woman women
n Kind Kinder child children
m Lehrer Lehrer teacher teachers
f Ärztin Ärztinnen doctor doctors
m Bäcker Bäcker baker bakers
m Maler Maler painter painters
f Nachbarin Nachbarinnen neighbour neighbours
m König Könige king kings
f Königin Königinnen queen queens
m Koch Köche chef chefs
n Mädchen Mädchen girl girls
m Freund Freunde friend friends
f Schwester Schwestern sister sisters
m Bruder Brüder brother brothers
m Gast Gäste guest guests
f Richterin Richterinnen judge judges
m Dieb Diebe thief thieves
""",
    """
jung young groß big klein small müd tired reich rich arm poor freundlich friendly tapfer brave traurig sad
lustig funny klug clever faul lazy stark strong ruhig quiet fremd strange
""",
)
ANIMALS = _noun_class(
    """
m Hund Hunde dog dogs
f Katze Katzen cat cats
n Pferd Pferde horse horses
m Vogel Vögel bird birds
f Kuh Kühe cow cows
m Wolf Wölfe wolf wolves
f Maus Mäuse mouse mice
""",
    """
jung young groß big klein small schwarz black weiß white wild wild schnell quick laut loud stark strong
müd tired
""",
)
THINGS = _noun_class(
    """
n Buch Bücher book books
m Brief Briefe letter letters
f Lampe Lampen lamp lamps
n Bild Bilder picture pictures
m Stuhl Stühle chair chairs
m Tisch Tische table tables
f Tasche Taschen bag bags
m Schlüssel Schlüssel key keys
n Messer Messer knife knives
f Flasche Flaschen bottle bottles
m Kuchen Kuchen cake cakes
f Karte Karten map maps
m Korb Körbe basket baskets
n Rad Räder wheel wheels
f Blume Blumen flower flowers
m Ring Ringe ring rings
n Kleid Kleider dress dresses
m Hut Hüte hat hats
f Tasse Tassen cup cups
m Mantel Mäntel coat coats
""",
    """
groß big klein small grün green rot red blau blue weiß white schwarz black neu new schwer heavy leicht light
lang long kurz short rund round kalt cold schön beautiful dick thick
""",
)
PLACES = _noun_class(
    """
m Garten Gärten garden gardens
f Stadt Städte town towns
n Haus Häuser house houses
m Wald Wälder forest forests
f Schule Schulen school schools
n Dorf Dörfer village villages
m Markt Märkte market markets
f Brücke Brücken bridge bridges
n Zimmer Zimmer room rooms
m Bahnhof Bahnhöfe station stations
f Kirche Kirchen church churches
n Schloss Schlösser castle castles
m Berg Berge mountain mountains
f Küche Küchen kitchen kitchens
n Schiff Schiffe ship ships
m Hof Höfe yard yards
f Höhle Höhlen cave caves
n Feld Felder field fields
""",
    """
groß big klein small schön beautiful neu new ruhig quiet fremd strange kalt cold grün green
""",
)
NAMES = ("Anna", "Peter", "Maria", "Jonas", "Clara", "Felix", "Greta", "Paul", "Lena", "Oskar")
PRONOUNS = {"er": ("he", False), "wir": ("we", True), "niemand": ("nobody", False), "jeder": ("everybody", False)}


OBJECTS = {"p": PEOPLE, "a": ANIMALS, "t": THINGS}

# kinds of object ('-' = none), singular, plural = infinitive, participle, then the English forms
TRANSITIVE = _verbs("""
pat sieht sehen gesehen sees see seen
pat findet finden gefunden finds find found
at kauft kaufen gekauft buys buy bought
at verkauft verkaufen verkauft sells sell sold
pat sucht suchen gesucht seeks seek sought
at trägt tragen getragen carries carry carried
pat malt malen gemalt paints paint painted
at stiehlt stehlen gestohlen steals steal stolen
pa liebt lieben geliebt loves love loved
pa hasst hassen gehasst hates hate hated
pa kennt kennen gekannt knows know known
at verliert verlieren verloren loses lose lost
pat versteckt verstecken versteckt hides hide hidden
pat zeichnet zeichnen gezeichnet draws draw drawn
pat holt holen geholt fetches fetch fetched
pa verfolgt verfolgen verfolgt follows follow followed
p grüßt grüßen gegrüßt greets greet greeted
pa rettet retten gerettet saves save saved
at bringt bringen gebracht brings bring brought
t zerstört zerstören zerstört destroys destroy destroyed
at wäscht waschen gewaschen washes wash washed
at zeigt zeigen gezeigt shows show shown
pat beschreibt beschreiben beschrieben describes describe described
at wählt wählen gewählt chooses choose chosen
""")
SEPARABLE = _separable("""
t auf macht machen aufgemacht opens open opened
p an ruft rufen angerufen phones phone phoned
pat ab holt holen abgeholt collects collect collected
at auf hebt heben aufgehoben lifts lift lifted
t auf hängt hängen aufgehängt hangs hang hung
p vor stellt stellen vorgestellt presents present presented
p ein lädt laden eingeladen invites invite invited
t zurück gibt geben zurückgegeben returns return returned
""")
INTRANSITIVE = _verbs("""
- schläft schlafen geschlafen sleeps sleep slept
- arbeitet arbeiten gearbeitet works work worked
- wartet warten gewartet waits wait waited
- lacht lachen gelacht laughs laugh laughed
- singt singen gesungen sings sing sung
- tanzt tanzen getanzt dances dance danced
- weint weinen geweint cries cry cried
- kocht kochen gekocht cooks cook cooked
""")
# these open a clause with 'dass': singular, plural, English singular, English plural
OPINIONS = tuple(
    tuple(line.split())
    for line in """
glaubt glauben believes believe
sagt sagen says say
hofft hoffen hopes hope
denkt denken thinks think
behauptet behaupten claims claim
fürchtet fürchten fears fear
""".strip().splitlines()
)
# singular, plural, English singular, English plural; 'wants to' is one word here and two there
MODALS = (
    ("will", "wollen", ("wants", "to"), ("want", "to")),
    ("kann", "können", ("can",), ("can",)),
    ("muss", "müssen", ("must",), ("must",)),
    ("soll", "sollen", ("should",), ("should",)),
    ("darf", "dürfen", ("may",), ("may",)),
)
PERFECT: tuple[str, str, tuple[str, ...], tuple[str, ...]] = ("hat", "haben", ("has",), ("have",))

PREPOSITIONS = (
    ("in", "in"),
    ("vor", "before"),
    ("hinter", "behind"),
    ("neben", "beside"),
    ("bei", "near"),
    ("unter", "under"),
    ("von", "from"),
)
CONTRACTIONS = {("in", "dem"): "im", ("von", "dem"): "vom", ("bei", "dem"): "beim"}
ADVERBS = (
    (("heute",), ("today",)),
    (("morgens",), ("mornings",)),
    (("oft",), ("often",)),
    (("manchmal",), ("sometimes",)),
    (("jetzt",), ("now",)),
    (("vielleicht",), ("perhaps",)),
    (("jeden", "Tag"), ("daily",)),
    (("noch", "einmal"), ("again",)),
    (("plötzlich",), ("all", "at", "once")),
)
SUBORDINATORS = (
    ("weil", ("because",)),
    ("obwohl", ("although",)),
    ("wenn", ("when",)),
    ("während", ("while",)),
    ("bevor", ("before",)),
    ("falls", ("if",)),
    ("damit", ("so", "that")),
)
COORDINATORS = (("und", "and"), ("aber", "but"), ("oder", "or"))

# columns m f n plural; '-' = there is no such form
DETERMINERS = {
    "the": ("the", "the", {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}),
    "this": ("this", "these", {
        "nom": "dieser diese dieses diese", "acc": "diesen diese dieses diese", "dat": "diesem dieser diesem diesen"}),
    "every": ("every", "-", {"nom": "jeder jede jedes -", "acc": "jeden jede jedes -", "dat": "jedem jeder jedem -"}),
    "a": ("a", "-", {"nom": "ein eine ein -", "acc": "einen eine ein -", "dat": "einem einer einem -"}),
    "my": ("my", "my", {
        "nom": "mein meine mein meine", "acc": "meinen meine mein meine", "dat": "meinem meiner meinem meinen"}),
    "your": ("your", "your", {
        "nom": "dein deine dein deine", "acc": "deinen deine dein deine", "dat": "deinem deiner deinem deinen"}),
}  # fmt: skip
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}
ENDINGS = {"the": WEAK, "this": WEAK, "every": WEAK, "a": MIXED, "my": MIXED, "your": MIXED}
