"""What made-up patients are called, where they live and who insures them."""

from __future__ import annotations

from typing import Final


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


MALE_NAMES: Final = _split(
    """Achim Alexander Andreas Anton Arif Axel Ben Benjamin Bernd Björn Carsten Christian
    Christoph Daniel David Dennis Detlef Dieter Dirk Dominik Elias Emil Erik Ernst Fabian Felix
    Finn Florian Frank Franz Georg Gerd Günter Hans Harald Heiko Heinz Helmut Henri Henrik Horst
    Ingo Jakob Jan Jens Joachim Jonas Jörg Jürgen Karl Kevin Klaus Kurt Lars Leon Luca Ludwig
    Lukas Manfred Marcel Marco Mario Markus Martin Matthias Max Mehmet Michael Moritz Mustafa
    Niklas Nils Noah Norbert Olaf Oliver Otto Patrick Paul Peter Philipp Rainer Ralf René Robert
    Rolf Rüdiger Sebastian Simon Stefan Steffen Sven Thomas Thorsten Till Tim Tobias Torben Udo
    Ulrich Uwe Volker Walter Werner Wilhelm Wolfgang Yusuf"""
)

FEMALE_NAMES: Final = _split(
    """Alexandra Amelie Andrea Angela Anja Anke Anna Annika Antje Astrid Ayse Barbara Beate
    Bettina Birgit Brigitte Carina Charlotte Christa Christina Claudia Cornelia Dagmar Daniela
    Doris Edith Elena Elif Elisabeth Elke Emilia Emma Erika Eva Fatma Franziska Frieda Gabriele
    Gerda Gisela Hannah Heike Helga Ida Ilse Inge Ingrid Jana Janina Jasmin Johanna Judith Julia
    Jutta Karin Kathrin Katja Kerstin Lara Laura Lea Lena Leonie Lilly Lina Linda Lisa Luise
    Manuela Maria Marie Marion Marlene Martina Melanie Mia Michaela Mona Monika Nadine Natalie
    Nicole Nina Nora Petra Pia Regina Renate Rita Sabine Sandra Sarah Silke Silvia Simone Sofia
    Sonja Stefanie Susanne Svenja Tanja Ulrike Ursula Ute Vanessa Vera Waltraud Yvonne"""
)

LAST_NAMES: Final = _split(
    """Albrecht Arnold Bauer Baumann Beck Becker Berger Bergmann Böhm Brandt Braun Busch Bürger
    Dietrich Engel Ernst Fischer Franke Frank Friedrich Fuchs Geisler Geißler Graf Groß Günther
    Haas Hahn Hartmann Heinrich Henk Herrmann Hoffmann Hofmann Horn Huber Jäger Jähn Jansen Jung
    Kaiser Kaya Keller Klein Koch Köhler König Kraus Krause Kreusel Krüger Kuhn Kühn Lang Lange
    Lehmann Lieb Lorenz Ludwig Maier Martin Mayer Meier Meyer Möller Müller Neumann Ott Otto
    Peters Pfeiffer Pohl Putz Richter Roth Sauer Schäfer Scherer Schmid Schmidt Schmitt Schmitz
    Schneider Scholz Schreiber Schröder Schubert Schulte Schulz Schulze Schumacher Schuster
    Schwarz Seidel Simon Sommer Spies Stein Thomas Vogel Vogt Voigt Wagner Walter Weber Weiß
    Werner Winkler Winter Wolf Wolff Yilmaz Zeit Ziegler Zimmermann"""
)

STREET_STEMS: Final = _split(
    """Acker Ahorn Anger Auen Bach Bahnhof Berg Bergmann Birken Blumen Brücken Brunnen Buchen
    Burg Deich Dorf Eichen Einstein Erlen Feld Fichten Fischer Forst Friedhof Garten Goethe
    Graben Hafen Haupt Heide Hügel Industrie Kastanien Kirch Kloster Lerchen Linden Markt Mühl
    Mühlen Neu Park Post Quellen Rathaus Ring Rosen Sand Schiller Schloss Schul See Sonnen Sport
    Stadt Stein Tal Tannen Teich Ulmen Wald Wasser Weiden Wein Wiesen Wind Ziegel"""
)

STREET_ENDS: Final = ("straße", "str.", "weg", "allee", "platz", "gasse", "ring", "ufer")

# Identifiers of statutory health insurers, with their insured persons in hundred thousands.
INSURERS: Final = (
    (101575519, 113),
    (104940005, 87),
    (101560000, 55),
    (108310400, 46),
    (108018007, 46),
    (107299005, 35),
    (104212505, 30),
    (102114819, 30),
    (107202793, 30),
    (103411401, 29),
    (109519005, 17),
    (105313145, 17),
    (102171012, 16),
    (109905003, 14),
    (107310373, 12),
    (108433248, 11),
    (103170002, 9),
    (109303301, 6),
)
