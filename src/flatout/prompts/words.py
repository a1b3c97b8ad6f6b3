"""The word material of the text generator: data only, our own lists.

A change here changes every generated prompt, so `prompt_text.VERSION` must rise with it (a test pins a hash).
"""

# ruff: noqa: SIM905 (word lists are read and edited as text, not as thousands of quotes)
from __future__ import annotations

from typing import Final

# One topic a paragraph group: people, things, places, verbs (past tense: the same for one and many), adjectives.
TOPICS: Final[dict[str, tuple[str, str, str, str, str]]] = {
    "harbour": (
        "pilot sailor captain diver cook porter fisherman shipwright purser navigator",
        "anchor rope barge lantern crate net hull rudder cargo tide chart buoy mast engine gangway winch compass cable "
        "ledger manifest ferry trawler sail cabin deck pump valve chain signal horn oar dinghy keel bell barrel flag",
        "pier lighthouse dock customs-house breakwater slipway channel boathouse quay estuary",
        "moored towed loaded inspected repaired painted lowered hoisted measured signalled unloaded steered tightened "
        "delayed tracked counted scrubbed weighed sealed logged",
        "salty rusted weathered heavy seaworthy wet drifting tarred foggy leaking northern tidal",
    ),
    "garden": (
        "gardener botanist neighbour beekeeper forester seed-merchant apprentice landscaper florist farmer",
        "rose seedling hedge spade trowel compost tulip pear orchard beehive fern root blossom fence pumpkin trellis "
        "watering-can mulch bulb thorn ivy wheelbarrow pollen cherry acorn cabbage lavender soil greenhouse rake sage",
        "meadow terrace glasshouse allotment courtyard lawn nursery hillside pond shed",
        "planted pruned watered harvested grafted dug trimmed sheltered weeded gathered transplanted sowed raked dried "
        "labelled admired tended covered thinned",
        "fragrant damp leafy ripe wild shaded tender blooming perennial thorny mossy sunlit",
    ),
    "laboratory": (
        "chemist technician physicist assistant biologist reviewer professor intern statistician engineer",
        "sample reagent microscope centrifuge beaker crystal sensor detector laser hypothesis protein enzyme dataset "
        "catalyst electrode filter specimen spectrum polymer solvent pipette calibration residue isotope membrane "
        "experiment curve vacuum particle thermometer notebook anomaly baseline",
        "clean-room workshop corridor observatory archive cold-store lecture-hall basement bench annex",
        "measured heated diluted recorded analysed isolated calibrated replicated cooled magnified filtered observed "
        "compared titrated irradiated published rejected verified estimated plotted",
        "dilute precise unstable sterile transparent acidic molecular thermal noisy controlled inert magnetic",
    ),
    "kitchen": (
        "chef baker waiter butcher guest dishwasher grocer hostess brewer confectioner",
        "soup loaf onion skillet knife oven dough pepper saucepan recipe broth butter apron kettle platter garlic "
        "pastry lemon ladle mushroom rice honey cheese cutting-board spice vinegar noodle menu plate carrot custard",
        "pantry dining-room bakery counter cellar market scullery terrace canteen tavern",
        "chopped simmered tasted kneaded roasted served seasoned whisked poured peeled grilled sliced burned plated "
        "stirred baked garnished reheated ordered",
        "crisp savoury bitter buttery fresh smoky tender sour spicy sweet burnt lukewarm",
    ),
    "railway": (
        "driver conductor passenger signalman inspector dispatcher mechanic stoker surveyor clerk",
        "locomotive carriage timetable ticket platform sleeper whistle switch brake axle freight tunnel bridge gauge "
        "semaphore coupling boiler rail wagon schedule suitcase compartment bogie track turntable crossing gradient "
        "headlamp relay diesel express",
        "station depot junction viaduct siding waiting-room terminus embankment yard signal-box",
        "boarded delayed shunted coupled inspected rerouted announced stopped electrified dispatched lubricated missed "
        "widened cancelled overtook replaced surveyed greased tested",
        "punctual crowded electric single-track noisy disused regional nocturnal overdue steep suburban empty",
    ),
    "court": (
        "judge lawyer witness juror bailiff clerk defendant notary prosecutor mediator",
        "contract verdict statute clause appeal testimony deed evidence objection transcript fine settlement motion "
        "petition signature licence precedent affidavit hearing lease summons bond claim brief argument exhibit "
        "warrant inheritance dispute docket",
        "courtroom chamber registry tribunal archive gallery town-hall antechamber library office",
        "signed dismissed questioned ruled upheld overturned filed cited contested postponed amended granted "
        "examined denied settled witnessed summarised revoked drafted",
        "binding lengthy void formal plausible disputed confidential unanimous lenient written provisional lawful",
    ),
    "computing": (
        "programmer administrator analyst tester architect operator maintainer designer auditor consultant",
        "server cache compiler packet thread queue database index scheduler socket parser kernel buffer token gateway "
        "cluster pipeline snapshot checksum driver register latency deadlock certificate replica batch interface "
        "container firewall backup counter heap daemon patch",
        "data-centre repository console rack terminal office staging-area helpdesk backbone workspace",
        "deployed compiled profiled patched indexed encrypted restarted cached benchmarked merged reverted allocated "
        "parsed throttled migrated traced locked refactored monitored",
        "asynchronous idle distributed stale redundant parallel encrypted lossy deterministic verbose nested remote",
    ),
    "theatre": (
        "actor director violinist dancer stagehand critic composer usher playwright soprano",
        "curtain costume script spotlight melody rehearsal mask violin applause scene prop balcony orchestra ticket "
        "overture monologue drum chorus lighting trapdoor poster cello encore finale ballad libretto wig tuba set "
        "microphone score",
        "stage foyer dressing-room gallery pit opera-house studio auditorium wings conservatory",
        "rehearsed performed applauded conducted improvised staged whispered tuned forgot sang revised illuminated "
        "sketched danced praised recorded interrupted adapted memorised",
        "dramatic silent velvet melodic tragic comic gilded dimly-lit rhythmic experimental hoarse brilliant",
    ),
    "mountain": (
        "climber guide shepherd geologist hiker ranger skier surveyor rescuer hermit",
        "glacier ridge rope summit boulder crevasse tent avalanche map stove trail cairn ledge crampon valley spring "
        "axe blizzard rucksack goat moraine waterfall granite lichen altimeter shelter harness slope fossil cornice",
        "hut base-camp pass plateau gorge peak meadow saddle ravine cave",
        "climbed crossed mapped descended photographed rescued carried sheltered marked explored followed abandoned "
        "sighted traversed avoided named examined reached circled",
        "steep frozen jagged windy remote snowbound rocky exhausted alpine treacherous glacial clear",
    ),
    "finance": (
        "banker investor accountant broker economist cashier auditor trader treasurer insurer",
        "invoice loan budget dividend ledger mortgage portfolio deficit tariff payroll audit asset bond currency "
        "interest inflation premium receipt pension forecast quarter share margin deposit balance liability tax "
        "subsidy turnover reserve",
        "exchange treasury branch boardroom counting-house vault ministry office trading-floor agency",
        "borrowed invested audited forecast lent taxed insured deposited withdrew discounted sold underwrote hedged "
        "converted reported refunded estimated consolidated approved",
        "fiscal volatile quarterly overdue fixed taxable modest liquid outstanding speculative annual net",
    ),
    "hospital": (
        "surgeon nurse patient pharmacist paramedic radiologist midwife therapist dentist physician",
        "bandage syringe fever diagnosis stethoscope vaccine prescription ambulance heartbeat fracture ward symptom "
        "scalpel allergy dose wound pulse monitor infusion splint tablet antibody clinic injection bruise recovery "
        "wheelchair biopsy lung tendon",
        "ward clinic operating-room pharmacy reception laboratory corridor emergency-room hospice sanatorium",
        "treated examined vaccinated bandaged diagnosed monitored prescribed admitted discharged scanned disinfected "
        "revived comforted sutured sedated transferred relieved tested advised",
        "chronic feverish sterile painful mild contagious elderly pale acute swollen preventive drowsy",
    ),
    "workshop": (
        "carpenter blacksmith welder apprentice glazier potter clockmaker mason tanner foreman",
        "hammer plank chisel anvil hinge lathe screw vice bolt bench kiln saw blueprint nail varnish spring gear drill "
        "file wrench plywood rivet pulley template clamp dowel mortar brick glaze pendulum leather bearing",
        "forge shed smithy warehouse loft attic foundry sawmill yard storeroom",
        "forged sanded drilled polished welded assembled measured varnished carved bent soldered sharpened dismantled "
        "fitted nailed glued hardened mended balanced",
        "sturdy oak brass crooked hollow polished handmade rough oily narrow precise brittle",
    ),
    "museum": (
        "curator archaeologist restorer visitor historian guard collector archivist translator donor",
        "vase manuscript statue coin mosaic portrait amulet tapestry inscription helmet catalogue relic parchment "
        "pottery sarcophagus sketch medal globe sundial tablet fresco necklace shard dagger atlas engraving scroll "
        "frame showcase map",
        "gallery crypt rotunda excavation archive vestibule storeroom reading-room temple cloister",
        "restored catalogued excavated displayed deciphered donated dated borrowed authenticated framed translated "
        "photographed unearthed stole copied dusted interpreted insured described",
        "ancient bronze faded priceless medieval fragile marble forged ornate cracked ceremonial anonymous",
    ),
    "weather": (
        "meteorologist pilot farmer observer forecaster sailor reporter volunteer balloonist hydrologist",
        "storm barometer cloud rainfall hail forecast front thermometer gust lightning drought frost humidity radar "
        "flood breeze rainbow thunder satellite pressure fog balloon monsoon anemometer cyclone snowflake puddle "
        "dewdrop heatwave horizon",
        "coast valley airfield station plain hilltop delta marsh highland island",
        "predicted observed recorded soaked swept darkened measured reported underestimated warned delayed cooled "
        "flooded scattered brightened followed averaged announced sheltered",
        "humid stormy overcast sudden dry freezing gentle tropical gusty unseasonable hazy mild",
    ),
}

ADJECTIVES: Final = (
    "small large quiet bright early late simple strange careful old new narrow broad green blue red grey yellow plain "
    "honest sudden gentle familiar distant ordinary curious hollow patient famous modern local foreign cheap costly "
    "useful broken perfect empty full double hidden open closed final second third private public rapid slow deep "
    "shallow young tired clever nervous proud reliable uncertain official secret temporary permanent complicated "
    "naïve elegant awkward massive tiny unusual common rare"
).split()

ABSTRACTS: Final = (
    "reason question answer problem method result mistake plan promise rumour decision story habit rule memory number "
    "difference purpose doubt signal pattern advantage condition detail effort silence warning agreement change idea "
    "limit meaning opinion order proof quality risk sequence theory tradition value weakness custom delay error "
    "balance choice compromise debate discovery explanation failure intention lesson objection principle surprise"
).split()

ADVERBS: Final = (
    "slowly|carefully|quickly|quietly|again|twice|together|alone|almost never|often|rarely|finally|gladly|at once|"
    "by hand|in silence|without warning|in turn|on purpose|by chance|with care|in haste|for good|in part|at length|"
    "reluctantly|neatly|badly|openly|secretly|patiently|firmly|gently|calmly|eagerly|precisely|loosely|repeatedly|"
    "thoroughly|briefly|entirely|partly|nearly|properly"
).split("|")

TIMES: Final = (
    "before noon|after midnight|in early spring|on the third day|during the winter|at dawn|late in the evening|"
    "two weeks later|a year earlier|on Monday|by Thursday|in the end|all afternoon|since the flood|last autumn|"
    "within an hour|for a moment|every morning|once a month|after the war|around seven|toward evening|in those years|"
    "at the same time|not long ago|on the way back|by the following week|as the clock struck four|in late August|"
    "under the new rules|on a cold Sunday|after a short pause|despite the rain|in the first attempt|at half past nine|"
    "until further notice|over the holidays|between the two visits|long before that|when nobody looked"
).split("|")

LINKS: Final = (
    "and|but|because|although|while|so that|until|whereas|since|before|after|unless|even though|as soon as|just as"
).split("|")

OPENERS: Final = (
    "However|Meanwhile|In fact|Therefore|At first|Of course|Still|As a rule|In other words|To be fair|Above all|"
    "For example|Strictly speaking|Curiously|In short|Moreover|On the other hand|By contrast|Even so|As expected|"
    "In practice|Sadly|Luckily|Afterwards|Instead|Besides|Admittedly|Nevertheless|Consequently|Perhaps"
).split("|")

SAID: Final = (
    "said asked replied whispered muttered explained insisted answered admitted repeated shouted suggested complained "
    "wondered promised objected added warned joked agreed"
).split()

FIRST_NAMES: Final = (
    "Anna Boris Clara Daniel Edith Felix Greta Hugo Irene Jonas Karin Leo Marta Nils Olga Paul Rosa Simon Tilda Viktor "
    "Walter Yvonne Amir Beatriz Chen Dalia Emeka Fatima Goran Hana Ibrahim Jia Kofi Lucía Mehmet Noor Oskar Priya "
    "Quentin Rania Sven Tomás Uma Vera Wei Zoë"
).split()

# Surnames and towns are put together from these, so that rare words occur as they do in real text.
SYLLABLES_A: Final = "Bar Kel Mor Ost Tra Vin Hol Lan Ros Ger Fal Nor Wes Bran Cal Dor Ed Har Stel Quin Lin Ash".split()
SYLLABLES_B: Final = "a e i o ber den fen gar ler mar ni ra sta ti vel wen".split()
SYLLABLES_C: Final = "son ton mann ski dale ford berg well ville ham stad wick mouth field low by stein more".split()

UNITS: Final = "kg km m cm litres hours minutes % °C kW tons pages crowns miles days boxes".split()

# Small words that nearly every byte-pair vocabulary holds as one token with the space before it.
PAD_WORDS: Final = (
    "and the of to in is it on as at by or we he so if no up an be go do my me us out all one two new now may who how "
    "was for are but not you can had her has him his its our see she too use way day get old man any did let put say"
).split()

# The head's vocabulary: 64 adjectives, 64 nouns, 32 verbs. Each was found to be one token, at each place where the head
# puts it, in two public vocabularies of different kinds (131k byte-level and 32k SentencePiece).
HEAD_ADJECTIVES: Final = (
    "big small old new good bad long short high low hot cold red blue green black white dark light deep fast slow "
    "hard soft strong rich young early late full open free safe happy easy simple clear quick cool fresh clean nice "
    "large fine real true local public private natural final first second third common special modern heavy main past "
    "next last human sweet"
).split()
HEAD_NOUNS: Final = (
    "man woman child dog cat horse bird fish tree river lake sea road street city town house door window table chair "
    "book paper letter word line page note song picture film game ball ship boat car train plane bridge wall stone "
    "fire water wind rain snow sun moon star day night year week hour king queen lord lady doctor teacher student "
    "farmer writer soldier"
).split()
HEAD_VERBS: Final = (
    "saw found took gave made kept held left met called knew liked loved needed wanted helped showed told asked moved "
    "turned opened built broke brought bought sold wrote followed watched lost sent"
).split()
