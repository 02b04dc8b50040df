// weights/train.cpp - makes the demonstration model: a small Llama-style network that tells children's stories
//
//     train --out DIR [--steps N] [--batch N] [--threads N] [--lr X] [--seed N]    writes stories_f32.bin and tokenizer.bin
//     train --out DIR --resume --lr X ...                                          trains what DIR holds for further steps
//     train --out DIR --sample N [--temp X] [--prompt TEXT] [--seed N]             tells N stories with them
//     train --check                      compares the gradients with finite differences, the tokenizer with itself
//     train --corpus N [--seed N]        prints N stories of the grammar
//
// Build: c++ -std=c++17 -O3 -march=native -ffast-math -pthread train.cpp -o train   (-ffast-math lets the compiler vectorise
// sums and exp; the rounding of a trainer matters to nobody). Only the standard library is used, and no data: a grammar
// writes the stories, a fresh one for each use. The files have the formats of llama2.c (checkpoint v0).
//
// Contents: corpus - vocabulary - network - training - samples and checks - main

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using std::size_t;

// splitmix64: small, and the same on every platform, as the standard distributions are not.
struct Rng {
    uint64_t state;
    uint64_t next()
    {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    size_t below(size_t n) { return static_cast<size_t>(next() % n); }
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
    float normal()
    {
        const float u = 1.0f - uniform();
        return std::sqrt(-2.0f * std::log(u)) * std::cos(6.2831853f * uniform());
    }
};

// ---- Corpus ----------------------------------------------------------------------------------------------------------
//
// The notation of a rule:
//     [a|b|c]     one of the alternatives, all equally likely; one may be empty
//     {x=a|b|c}   the same, kept in the variable x and not printed
//     $x          the value of variable x
//     <rule>      the expansion of another rule
// Capital letters at the start of a sentence, the n of "an" and the spacing are the work of tidy().
//
// What holds through a story: of the hero N name, k kind, h he/she, H He/She, s his/her, m him/her, a adjective, l hobby,
// L home; of the friend F name, f kind, i he/she, I He/She, j his/her, o him/her, G "her friend Sam", E "Sam the fox"; of a
// grown-up M mom, A Mom, y she. The other letters belong to the plot: t and b its things, c a colour, w and z the rest.
constexpr const char* grammar[][2] = {
    {"cast", R"(<grownup>{l=<hobby>}{a=<trait>}[<child>[<pal>|<pet>]|<beast><pet>])"},
    {"child", R"([{k=girl|girl|girl|girl|princess}{N=<girls>}<she>|{k=boy|boy|boy|boy|prince}{N=<boys>}<he>] {L=in a
      [small|cozy|yellow] house [by the sea|near the forest|on a hill]|on a [small|big] farm|in a [small|quiet|pretty]
      [town|village]|near the river})"},
    {"beast", R"({k=<animals>}[{N=<girls>}<she>|{N=<boys>}<he>] {L=in [the|a] [green|big|quiet|old|deep] [forest|garden|
      meadow]|under [a big|an old] tree|near a [small|quiet|blue] [pond|lake|river]|on a green hill|in a cozy little
      home})"},
    {"pal", R"([{f=girl}{F=<girls>}<i-she>|{f=boy}{F=<boys>}<i-he>]{E=$F} {G=$s friend $F|$s friend $F|a [kind|nice] $f
      named $F})"},
    {"pet", R"({f=<animals>}[{F=<girls>}<i-she>|{F=<boys>}<i-he>]{E=$F the $f} {G=$s friend $F|$F the $f|a [kind|wise|
      funny] $f named $F})"},
    {"she", R"({h=she}{H=She}{s=her}{m=her})"},
    {"he", R"({h=he}{H=He}{s=his}{m=him})"},
    {"i-she", R"({i=she}{I=She}{j=her}{o=her})"},
    {"i-he", R"({i=he}{I=He}{j=his}{o=him})"},
    {"grownup", R"([{M=mom}{A=Mom}{y=she}|{M=dad}{A=Dad}{y=he}|{M=mother}{A=Mother}{y=she}|{M=grandma}{A=Grandma}{y=she}|
      {M=grandpa}{A=Grandpa}{y=he}])"},
    {"girls", R"([<new-name>|<new-name>|Lily|Mia|Anna|Lucy|Sue|Emma|Rose|Zoe|Ella|Nina|Amy|Daisy|Kate|Molly|Ivy|Bella|
      Una])"},
    {"boys", R"([<new-name>|<new-name>|Tom|Ben|Max|Sam|Tim|Jack|Leo|Finn|Billy|Peter|Dan|Toby|Gus|Ned|Will|Fred|
      Victor])"},
    {"new-name", R"([B|C|D|F|G|H|J|K|L|M|N|P|Q|R|S|T|V|W|X|Y|Z|Bl|Ch|Dr|Fl|Gr|Kr|Pl|Sh|Tr|A|E|I|O|U]<sounds>[<sounds>|
      ])"},
    {"sounds", R"([a|e|i|o|u][b|d|f|g|k|l|m|n|p|r|s|t|v|x|z|lly|nny|nda|ra|ri|lo|mi|th|y])"},
    {"animals", R"([rabbit|fox|bear|mouse|squirrel|duck|frog|owl|cat|dog|turtle|pig|bird|goat|sheep|horse|cow|hen|lion|
      tiger|elephant|penguin|deer|wolf|snail|bee|monkey|dragon|robot])"},
    {"trait", R"([little|little|little|small|young|happy|kind|brave|clever|curious|gentle|funny|good|shy|silly|busy|
      lively])"},
    {"hobby", R"([play in the sun|sing songs|dance in the rain|draw pictures|read books|look at the stars|run in the
      grass|pick flowers|tell stories|make things|play games|look for shiny stones|listen to the birds|swim in the river|
      watch the clouds])"},
    {"open", R"([[Once upon a time,|Once upon a time,|Once upon a time,|Long ago,|A long time ago,|In a land far away,]
      there was a $a $k named $N. [<more>|<more>|]|Once upon a time, a $a $k named $N lived $L.|Once upon a time, $L,
      there lived a $a $k named $N.|there once was a $a $k named $N who lived $L.|$N was a $a $k who [lived $L|loved to
      $l].|there was a $a $k. [$s|the $k's] name was $N. [<more>|]|$N the $k [lived $L|loved to $l].|this is the story of
      $N, a $a $k who lived $L.|do you know $N? $h was a $a $k who [lived $L|loved to $l].])"},
    {"more", R"([$h lived $L.|$h lived $L with $s $M.|$h loved to $l.|every day, $h liked to $l.|$N liked to $l with $s
      $M.])"},
    {"duo", R"([Once upon a time, there were two friends named $N and $F. [$N was a $k and $F was a $f.|they lived $L.|
      they played together every day.|they loved to $l.|]|Once upon a time, there was a $a $k named $N. $s best friend was
      $E.|Once upon a time, a $a $k named $N lived $L. $h had a friend named $F.|$N was a $a $k. $h and $s friend $F
      [loved to $l|did everything together].|$N the $k and $F the $f were [best|good] friends.])"},
    {"day", R"([one|one|one sunny|one fine|one warm] [day|day|morning],)"},
    {"end-two", R"([from that day on, $N and $F were [best|good|great] friends.|$N and $F [played|laughed] [all day long|
      until the sun went down].|$N was glad to have a friend like $F.|they were both very happy.|$N and $F went home with
      big smiles.|] <the-end>)"},
    {"end-one", R"([that night, $N [went to bed|fell asleep] with a [big|happy] smile.|$N was [very|so] happy.|$N never
      forgot that day.|$N felt [warm and happy|very proud].|] <the-end>)"},
    {"the-end", R"([||The end.])"},
    {"hug", R"([jumped for joy|gave $F a big hug|clapped and laughed|smiled a big smile])"},
    {"why", R"("[Why are you sad?|What is wrong, $N?|Why do you look so sad?]")"},
    {"help", R"([Do not cry|Do not worry|It is all right]. [I will help you|I have an idea])"},
    {"tale", R"([<lost>|<baby>|<fear>|<share>|<broken>|<build>|<stuck>|<quarrel>|<picnic>|<race>|<newcomer>|<seed>|<wish>|
      <sick>|<noise>|<learn>|<box>|<birthday>|<cake>|<wind>|<helper>|<greedy>|<trick>|<snow>|<moon>|<song>|<bridge>|
      <star>|<giant>|<hide>|<way>|<map>|<paint>|<king>|<butterfly>|<raft>])"},
    {"lost", R"({c=red|blue|green|yellow|little|pretty}{t=ball|kite|hat|scarf|drum|boat|bear|bell} <open> $N had a $c $t.
      [$h took it everywhere.|it was a gift from $s $M.|] <day> [the $t was gone|$h could not find it]. $N looked [under
      the bed|behind the door|in the garden|by the gate], but it was not there. $h [began to cry|was very sad]. $G came by
      and asked, <why> "I lost my $t," said $N. "<help>," said $F. they looked [high and low|everywhere]. [at last,|soon,|
      then] $F saw something [$c|move] [under a bush|behind a tree|in the tall grass]. it was the $t! $N <hug>.
      <end-two>)"},
    {"baby", R"({b=chick|kitten|puppy|lamb|baby bird|baby rabbit}<open> <day> $N heard a [small|soft] [sound|voice]
      [behind a bush|near the pond|in the tall grass|under a tree]. it was a $b. "Where is your mother?" asked $N. "[I do
      not know|I can not find her|I went too far from home]," said the $b. "[Do not be afraid|Do not cry]. I will help
      you," said $N. they walked [over the hill|past the old barn|along the river|into the woods]. [they asked [an old
      owl|a busy bee|a white goose]. "[Go|Look] that way," it said.|] [at last,|soon,] they saw the mother of the $b. she
      [ran to them|was so happy]. "Thank you, [kind|good|dear] $k," she said. <end-one>)"},
    {"fear", R"({a=little|small|young|shy}<open> $N was [very afraid|scared] of [{w=the dark}the dark. one night, the
      light went out. "$A! I can not see!" $h cried. $s $M came and sat by the bed. "Look out of the window," $y said.
      "[The stars are|The moon is] here to keep you safe." $N looked up and saw [a thousand little lights|a big silver
      light].|{w=thunder}thunder. one night, there was a big storm. boom! boom! $N hid under the table. $s $M held $m
      close. "It is only the clouds playing [drums|a game]," $y said. "Let us [sing with them|count to ten]." soon the
      storm [was far away|did not sound so bad].|{w=deep water}deep water. <day> all the others jumped into the lake, but
      $N did not. "Come and hold my hand," said $G. $N put one foot in the water, and then the other. it was [cool|warm],
      and it felt good. "I [am in the water|am doing it]!" $N called.|{w=high places}high places. <day> $G was sitting in
      a tree. "Come up!" $F called. $N put one foot up, then the other, and did not look down. at the top, $h saw [the
      blue sea|the green hills] far away. "It is beautiful!" $h said.] [from that day on, $N was not afraid of $w any
      more.|$N was still a little afraid of $w, but now $h knew how to be brave.] <the-end>)"},
    {"share", R"({t=cookie|pear|apple|bun|cake|pie}<open> <day> $s $M gave $m a [big|sweet|warm] $t. $N sat down [on a
      bench|under a tree|by the pond] to eat it. then $G came by and looked at the $t. "Are you hungry?" asked $N. "[Yes,
      I am|Yes, a little]," said $F. $N wanted to eat it all alone, but $h [saw $F's sad eyes|felt sorry for $F]. "We can
      share," said $N. $h broke the $t in two and gave [half|the big half] to $F. [the next day, $F came back with
      [berries|nuts|plums]. "Now I will share with you," $i said.|it was the best $t that $N had ever eaten.|"Thank you!
      You are so kind," said $F.] <end-two>)"},
    {"broken", R"({t=vase|bowl|cup|lamp|window|clock}{c=blue|big|old|pretty|white}<open> <day> $N was [running|playing
      with a ball|dancing] in the house. crash! the $c $t was broken. "[What will $A say?|Oh no! What have I done?]" $N
      thought. first, $h wanted to [hide|run away|say that the [cat|wind] did it]. but that [was not right|did not feel
      good]. so $h went to $s $M and said, "I am sorry. I broke the $t." $s $M [smiled|gave $m a hug]. "Thank you for
      telling me the truth," $y said. "[That was very brave|I am proud of you]." they [cleaned up|picked up the pieces|
      fixed it] together. [after that, $N always told the truth.|] <the-end>)"},
    {"build", R"({t=tower|castle|tree house|boat|bird house|wagon}<duo> <day> they wanted to build a [big|new] $t. $N
      [brought|found] [wood|stones|sticks], and $F brought a [rope|hammer]. but when it was almost done, the $t [fell
      down|fell apart]. "[It is no good|It is too hard|I give up]!" cried $N. "[Let us try again|We can do better]," said
      $F. "This time we will [go slowly|help each other more]." so they started again. when the sun went down, the $t was
      ready. it was [big and strong|even better than before]. [|"We did it!" they [shouted|said] together.] <end-two>)"},
    {"stuck", R"({b=kitten|squirrel|little goat|young owl}<duo> <day> they heard a cry. A $b was stuck [{w=tree}
      {z=ladder}high in a tree|{w=mud}{z=rope}in the deep mud|{w=hole}{z=long branch}in a deep hole|{w=bush}{z=stick}in a
      thorny bush]. "[I can not get out|Please help me]," it said. $N tried to reach it, but $h was too [small|short].
      "[We need a $z|I know! We can use a $z]," said $F. they [ran home to get|looked around and found] a $z. "One, two,
      three!" they said, and the $b was out of the $w. "Thank you!" it said. [it ran home to its mother.|it stayed and
      played with them.|] <end-two>)"},
    {"quarrel", R"({c=red|blue|green|yellow|shiny|new}{t=ball|drum|wagon|swing|kite|boat}<duo> <day> they found a $c $t.
      "It is mine! I saw it first," said $N. "No, it is mine!" said $F. [they were both angry.|] $F went away, and $N was
      alone with the $t. but it was no fun to play alone. $N went to find $F. "I am sorry," $h said. "[You can have it
      first|Let us take turns|We can share it]." $F smiled. "I am sorry, too," $i said. soon they were [laughing again|
      having so much fun]. [a friend is better than a $t.|] <end-two>)"},
    {"picnic", R"(<duo> <day> they wanted to have a picnic [by the lake|on the hill|in the park]. $N took [bread and
      cheese|apples and nuts|cake and milk], and $F brought [a blanket|some berries]. but soon the sky turned gray, and it
      began to rain. "Oh no! Our picnic is ruined," said $N. "We can have it [in the barn|under the big tree|in a cave|
      under my table]," said $F. they ate and [told stories|sang songs] and listened to the rain. [then a [big|bright]
      rainbow was in the sky.|] "[This is the best picnic ever|I am glad that it rained]!" said $N. <end-two>)"},
    {"race", R"(<duo> <day> there was a big race [in the village|around the lake|in the forest]. "I will win," said $F. $F
      ran [fast|far ahead], and $N came after. but then $F [fell over a stone|slipped in the mud]. "Ouch! My [foot|leg]
      hurts!" $i cried. $N could run past $o and win, but $h stopped. "[Take my hand|Do not cry]," $h said. "We will go
      together." they were last, but everyone [clapped|was happy] for them. ["[You are the real winner|I am sorry that I
      was so proud]," said $F.|] <end-two>)"},
    {"newcomer", R"(<open> <day> a new $f came to live [next door|near by]. $j name was $F. $F [sat alone|did not talk to
      anyone], because $i was [shy|new]. $N felt sorry for $F. $h [picked a flower|took two cookies|took $s ball] and went
      over. "Hello, I am $N," $h said. "Do you want to [play|be my friend]?" $F looked up. "[Do you really want to play
      with me?|Yes, please!]" $i asked softly. they played [ball|in the sand|many games] until dinner. [soon the others
      came to play, too.|] <end-two>)"},
    {"seed", R"({t=sunflower|pumpkin|apple tree|rose}<open> <day> $s $M gave $m a [tiny|small|brown] seed. $N put the seed
      in the ground. $h gave it water every day, but nothing came up. "[It does not work|It will never grow]," said $N.
      "[Wait a little longer|Good things take time]," said $s $M. so $N waited. then [one morning|after the rain], there
      was a little green leaf! it grew and grew. [by summer|in the end], it was a big, beautiful $t. ["[You were right|
      Look at my $t]!" said $N.|] [everyone came to see it.|$N gave a new seed to $s friend $F.|] <end-one>)"},
    {"wish", R"({t=golden key|silver bell|magic stone|old lamp|blue shell}<open> <day> $N found a $t [in the sand|under a
      tree|by the river]. when $h [touched it|picked it up], a tiny {b=fairy|star|dragon}$b came out. "You may have one
      wish," it said. $N thought about [a room full of toys|a big castle|a mountain of cake]. then $h thought of $s friend
      $F, who was [sick|sad|all alone]. "I wish that $F would be happy again," said $N. ["[You have a good heart|That is a
      good wish]," said the $b.|] when $N came home, $F was [dancing|singing|laughing] by the door. <end-two>)"},
    {"sick", R"(<duo> <day> $F did not come out to play. $i was in bed with a [cold|red nose]. $N was sad, but then $h had
      an idea. $h went home and made a pot of [warm|hot] soup. $h also took [some flowers|$s favorite book]. "[Here is
      some soup for you|This will make you feel better]," said $N. $F ate [it all up|two bowls], and $N told $o a [funny|
      long|good] story. the next day, $F was well again. ["[Your soup was magic|A good friend is the best medicine]," $i
      said.|] <end-two>)"},
    {"noise", R"(<open> one night, $N was in bed. [tap, tap, tap!|bump, bump!] there was a noise [at the window|behind the
      door]. "[What is that?|Who is there?]" $h asked. nobody answered. [is it a monster?|maybe it is a ghost!|] $N was
      scared, but $h wanted to know. $h took [a little lamp|$s toy bear] and went to look, step by step. it was only
      [{b=branch}a branch in the wind|{b=mouse}a tiny mouse with some cheese|{b=kitten}a wet kitten|{b=owl}a little owl
      that was lost]! $N began to laugh. "It is only you, silly $b!" $h said. then $h went back to bed and [slept well|
      fell asleep]. <the-end>)"},
    {"learn", R"({t=ride a bike|swim|whistle|skate|fly a kite|climb a tree}<open> $N wanted to learn to $t. <day> $h
      tried, but it [did not work|was too hard]. "[I will never learn it|I can not do it]!" said $N. $G saw $m. "I could
      not do it at first," said $F. "[Try a little every day|Do not give up]." so $N tried [again and again|every morning|
      every day]. [sometimes $h cried, but $h did not stop.|$F stayed with $m and helped.|] and then, [one day|at last],
      $N could $t! "Look, $F! [I can do it|I did it]!" $h [called|shouted]. <end-two>)"},
    {"box", R"({t=box|chest|bag}<open> <day> $N found an old {c=brown|green|heavy}$c $t [behind the house|under the
      stairs|in a cave]. "[What can be inside?|I want to know what is in it!]" said $N. it was [locked|shut], so $h asked
      $G to help. [they looked for a key. at last, $F found it under a stone.|they pulled and pulled. then it opened with
      a pop.] inside was [{b=map}an old map|{b=hat}a funny hat|{b=book}a book full of pictures|{b=crown}a golden crown].
      "How [beautiful|wonderful]!" said $N. $N and $F [looked at|played with] the $b all day. <the-end>)"},
    {"birthday", R"(<open> it was $s birthday, but nobody said a word. $s $M was [busy|not at home], and $s friend $F did
      not want to play. "They all forgot my birthday," thought $N. $h [walked alone to the river|sat alone under a tree]
      and felt very sad. in the evening, $h came home. the house was dark. $N opened the door. "Surprise!" called
      [everyone|many voices]. there was a [big|tall] cake, and $F gave $m a [new book|red balloon|little boat|warm scarf].
      ["[We did not forget you!|How could we forget you?]" said $F.|] <end-one>)"},
    {"cake", R"({t=cake|pie|plum cake}<duo> <day> they wanted to make a $t for $s $M. $N [read the book|found the big
      spoon], and $F [got the bowl|brought the eggs]. when the $t was ready, they took a bite. "Yuck!" said $N. "[It is
      too salty|It tastes like salt|We used salt, not sugar]!" They both began to laugh. "[We can make a new one|Let us
      try again]," said $F. this time they [tasted everything first|were very careful]. the new $t was [sweet and soft|
      warm and good|perfect]. ["This is [the best $t in the world|so good]!" said $s $M.|] <end-two>)"},
    {"wind", R"({c=red|blue|yellow|white|pretty}{t=hat|kite|balloon|scarf}<open> <day> $N went out with $s new $c $t. then
      a strong wind [blew|took] it away. "[Stop, wind|Come back]!" cried $N. the $t flew over [the house|the trees|the
      river|the road], and $N ran after it. at last, it came down [in a garden|near a pond]. a $f was holding it. "[Is
      this your $t?|Did you lose this?]" asked the $f. "Yes! Thank you so much," said $N. "I am $F," said the $f. "Do you
      want to play with me?" [So|Then] they played with the $t together. [The wind had brought $N a friend.|<end-two>])"},
    {"helper", R"({b=woman|man|farmer|goose|turtle}<open> <day> $N went for a walk. $h saw an old $b with a heavy
      {t=basket|bag}$t. "[Can I help you?|May I carry that for you?]" asked $N. "[Oh, yes, please|That is very kind],"
      said the old $b. $N carried the $t [up the hill|over the bridge|through the town]. it was [heavy|a long way], but $N
      did not [stop|give up]. at the door, the old $b said, "Thank you, [dear|good] $k. Here is something for you." it was
      [a sweet red apple|a small wooden horse|a bag of nuts]. [it feels good to help.|<end-one>])"},
    {"greedy", R"({t=berries|plums|cookies|cherries}<duo> <day> they [found|had] a big bowl of $t. "[Do not eat too many|
      Let us save some for tomorrow]," said $F. but $N was very hungry. $h ate one, then two, then ten. soon, $s tummy
      began to hurt. "[Oh, my tummy!|Ouch! I do not feel good!]" $h cried. $F [made $m some tea|brought $m a warm blanket]
      and sat with $m. "[Next time, I will share|You were right]," said $N. the next day, $N brought a new bowl of $t and
      gave [the first one|most of them] to $F. <end-two>)"},
    {"trick", R"({b=wolf|snake|lion}{a=funny|young|little}<duo> <day> $N shouted, "Help! [A $b is here|I see a $b]!" $F
      came running, but there was no $b. $N laughed and laughed. the next day, $N did it again. "[That is not funny|Please
      stop that]," said $F. then, one evening, a real $b came! "Help! Help!" shouted $N, but nobody came. $N [climbed a
      tree|hid behind a rock] and cried. then $F heard $s voice and [made a loud noise|hit a big drum], and the $b ran
      away. "I am sorry," said $N. "I will [never lie|not do that] again." <the-end>)"},
    {"snow", R"(<duo> one [cold|winter] morning, everything was white. "Snow! Snow!" called $N. they made a [big|round|
      tall] snowman with [a carrot nose|two black eyes|a red nose]. "He looks cold," said $F. so $N gave the snowman $s
      [scarf|hat]. [they drank hot milk by the fire.|] after some days, the sun came out, and the snowman [melted|was
      gone]. $N [was sad|began to cry]. "Do not be sad," said $F. "[He will come back with the snow|He is water now, and
      he makes the flowers grow]." [that made $N smile.|] <end-two>)"},
    {"moon", R"(<open> one night, $N could not sleep. then a [soft|small|white] cloud came to the window. "[Hop on|Come
      with me]," it said. $N sat on the cloud, and they flew over the [town|trees|sea], up and up. on the moon, everything
      was [silver|soft like snow]. $N met a [little|round|shiny] {b=mouse|star|cat}$b. they [jumped very high|ate moon
      cheese] and laughed. "Good night, $N," said the $b, and it gave $m a [silver stone|tiny light]. in the morning, $N
      woke up in bed. [was it a dream?|it was only a dream.] but [in $s hand|under the pillow] was something silver.
      <the-end>)"},
    {"song", R"(<open> there was going to be a big show [at school|in the village|in the forest]. $N wanted to {w=sing|
      dance|play the drum}$w, but $h was very scared. "[What if I do it wrong?|They will all laugh at me!]" $h said to $G.
      "Look only at me," said $F. the big night came. $N stood in front of everyone. then $h saw $F in the first row. $F
      [smiled|waved]. so $N began to $w, first softly and then better and better. at the end, everyone [clapped|stood up].
      ["[You were wonderful|I knew you could do it]!" said $F.|] <end-two>)"},
    {"bridge", R"(<duo> between their homes there was a [little|small] river with a bridge. one night, a storm took it
      away. "[How can I visit you now?|Now we can not play together!]" called $N. they asked [the beaver|the farmer] for
      help. "Bring me wood," he said. they worked for three days. then the new bridge was ready. $N ran from one side, and
      $F ran from the other. they met in the middle and [hugged|laughed]. <end-two>)"},
    {"star", R"(<open> one night, a [little|tiny|small] star fell from the sky into [the garden|the grass|the pond].
      "[Please help me|I want to go home]," it said. "I can not get back to the sky." $N [picked it up|held it in both
      hands]. first, $N [threw it up high|climbed on the roof], but that did not work. then $h had an idea. $h [asked a
      big bird to help|tied the star to a kite|tied it to a red balloon]. up and up it went, until it was [a little light|
      back in the sky]. "Thank you, $N!" called the star. [every night,|from that night on,] it shone just for $m.
      <end-one>)"},
    {"giant", R"({b=dragon|giant|troll}<open> everyone was afraid of the $b [on the hill|in the cave|in the old castle].
      "It is [big and loud|very bad]," they said. <day> $N heard it cry. $h went to look. "Why are you crying?" asked $N.
      ["I have a thorn in my foot," said the $b. so $N pulled it out.|"Nobody wants to play with me," said the $b. "I will
      play with you," said $N.|"I am cold and alone," said the $b. so $N gave it $s blanket.] the $b laughed so [much|
      hard] that the ground shook. [soon, everyone came to play.|from that day on, nobody was afraid of the $b.|]
      <end-one>)"},
    {"hide", R"(<duo> <day> they played hide and seek. $F began to count, and $N hid [in a big basket|behind the old barn|
      under a boat|in an old tree]. it was [warm|dark] and quiet there, and $N fell asleep. $F looked [high and low|
      everywhere], but could not find $m. "$N! Where are you?" $F called. then $i heard a funny sound. it was $N! $h was
      [sleeping like a baby|talking in $s sleep]. $F laughed and woke $m up. "Did I win?" asked $N. "[Yes, you did|Yes,
      and now it is my turn]," said $F. <end-two>)"},
    {"way", R"({w=river|stars|road|little stones}<open> <day> $N walked far from home to look for [berries|flowers|nuts].
      soon, $h was lost. all the trees looked the same. "Which way is home?" $N asked [an old owl|a red bird|a little
      snail]. "Follow the $w," it said. so $N followed the $w, step by step. [it was a long way, but $N was brave.|] at
      last, $h saw a light. $s $M was at the door. "[I looked for you everywhere|I am so glad to see you]!" $y said. [$N
      never went so far alone again.|<end-one>])"},
    {"map", R"(<duo> <day> they found an old map in [a book|a bottle|a box]. "It is a treasure map!" said $N. they walked
      [over the hill|through the woods|across the river] until they came to a big [stone|tree]. "[Dig here|This is the
      place]," said $F. they dug and dug. in the ground was [a box full of shiny stones|one gold coin|a jar of honey|a
      little silver ring]. "[We are rich|We found it]!" said $N. ["The best treasure is a friend like you," said $F.|they
      gave it to $N's $M.|they hid it again, and it was their secret.] <end-two>)"},
    {"paint", R"({b=bird|cloud|fish|hat|cat}{c=blue|green|red|yellow}<open> <day> $N wanted to paint [the sea|a big tree|a
      house] for $s $M. but then a drop of paint fell on the picture and made a big $c spot. "[It is ruined|Now it is no
      good]!" cried $N. $G looked at the spot. "It looks like a $b," said $F. $N [laughed|thought about it] and made a $b
      from the spot. when $s $M saw the picture, $y said, "[I like the $c $b best|What a beautiful $b]." <end-two>)"},
    {"king", R"({b=king|queen}{w=smiled|laughed}<open> in the castle lived a $b who never $w. [many people tried to help,
      but nobody could.|] <day> $N went to the castle. ["What can a little $k do?"|"You are too small,"] said the guard.
      but $N [told a funny story|did a silly dance|sang a happy song|made a funny face]. at first, the $b [said nothing|
      only looked]. then the $b $w for the first time. "Thank you, $N! What would you like?" asked the $b. "[A cake for my
      $M|A new book|A big red ball], please," said $N. [and the $b gave it to $m.|] <end-one>)"},
    {"butterfly", R"(<open> <day> $N found a little green worm on a leaf. "You look hungry," $h said and gave it [another
      leaf|more leaves]. $N [went to see it|sat with it] every day. but one morning, the worm was gone. there was only a
      [small|brown] thing that [did not move|looked like a nut]. $N was sad, but $h waited. then it opened, and a
      beautiful [blue|yellow|red|white] butterfly came out! it [sat on $s nose|danced around $m]. "[Now you can fly!|Is it
      really you?]" said $N. <end-one>)"},
    {"raft", R"(<duo> <day> they made a boat from [a big box|an old door] and went down the river. [at first, it was fun.|
      ] but then the boat began to fill with water. "[We are going down|Help us]!" cried $N. $F took $j hat and threw the
      water out, but there was too much. then a big [turtle|swan] came. "[Sit on my back|Hold on to me]," it said, and it
      took them [home|to the grass]. they were wet [and cold|from head to foot], but they laughed. "[That was fun|Next
      time, we will make a better boat]!" said $F. <end-two>)"},
};

class Storyteller {
public:
    explicit Storyteller(uint64_t seed) : rng{seed} {}

    // A story of at most 510 letters, about 240 pieces: it fits the context whole.
    std::string tell()
    {
        for (;;) {
            expand("<cast>");
            const bool same_kind = var('k') == var('f') && var('k') != "girl" && var('k') != "boy";
            if (same_kind || var('N') == var('F')) continue;
            const std::string story = tidy(expand("<tale>"));
            if (story.size() <= 510) return story;
        }
    }

private:
    std::string& var(char name) { return vars[static_cast<unsigned char>(name) & 127u]; }
    static bool is_space(char c) { return c == ' ' || c == '\n'; }
    static std::string_view rule(std::string_view name)
    {
        for (const auto& r : grammar)
            if (name == r[0]) return r[1];
        throw std::runtime_error("no rule <" + std::string(name) + ">");
    }

    std::string expand(std::string_view text)
    {
        std::string out;
        for (size_t i = 0; i < text.size(); i++) {
            const char c = text[i];
            if (c == '$') {
                out += var(text[++i]);
            } else if (c == '<') {
                const size_t end = text.find('>', i);
                out += expand(rule(text.substr(i + 1, end - i - 1)));
                i = end;
            } else if (c == '[' || c == '{') {
                std::vector<size_t> cuts{c == '[' ? i : i + 2};    // the characters around the alternatives
                size_t depth = 1, j = i + 1;
                for (; depth > 0; j++) {
                    const char d = text.at(j);
                    if (d == '[' || d == '{') depth++;
                    if (d == ']' || d == '}') depth--;
                    if (depth == 0 || (depth == 1 && d == '|')) cuts.push_back(j);
                }
                const size_t pick = rng.below(cuts.size() - 1);
                std::string_view one = text.substr(cuts[pick] + 1, cuts[pick + 1] - cuts[pick] - 1);
                while (!one.empty() && is_space(one.front())) one.remove_prefix(1);
                while (!one.empty() && is_space(one.back())) one.remove_suffix(1);
                if (c == '[') out += expand(one);
                else var(text[i + 1]) = expand(one);
                i = j - 1;
            } else {
                out += c;
            }
        }
        return out;
    }

    // Single spaces, none before a stop or just inside a quotation; a capital where a sentence starts ("Stop!" she said: a
    // quotation ends its sentence only by a full stop); "an" before a vowel.
    static std::string tidy(const std::string& raw)
    {
        std::string out;
        bool space = false, quoted = false, capital = true;
        for (char c : raw) {
            if (is_space(c)) {
                space = true;
                continue;
            }
            const bool closing = c == '"' && quoted, stop = c == '.' || c == ',' || c == '!' || c == '?';
            const bool just_opened = quoted && out.back() == '"';
            if (space && !out.empty() && !closing && !stop && !just_opened) out += ' ';
            space = false;
            if (c >= 'a' && c <= 'z' && capital) c = static_cast<char>(c - 'a' + 'A');
            const size_t n = out.size();
            if (std::strchr("aeiouAEIOU", c) != nullptr && n >= 2 && out[n - 1] == ' ' && (out[n - 2] | 32) == 'a' &&
                (n == 2 || out[n - 3] == ' ' || out[n - 3] == '"'))
                out.insert(n - 1, "n");
            if (c == '"') quoted = !quoted;
            capital = (stop && c != ',' && !quoted) || (closing && out.back() == '.') || (capital && c == '"');
            out += c;
        }
        return out;
    }

    Rng rng;
    std::array<std::string, 128> vars;
};

std::vector<std::string> stories(size_t n, uint64_t seed)
{
    Storyteller teller(seed);
    std::vector<std::string> all;
    while (all.size() < n) all.push_back(teller.tell());
    return all;
}

// ---- Vocabulary ------------------------------------------------------------------------------------------------------

constexpr size_t vocab_size = 512, first_byte = 3, first_piece = 259;
constexpr int bos = 1;

std::FILE* open(const std::string& path, const char* mode)
{
    std::FILE* f = std::fopen(path.c_str(), mode);
    if (f == nullptr) throw std::runtime_error("can not open " + path);
    return f;
}
template <class T> void get(std::FILE* f, T* to, size_t n = 1)
{
    if (std::fread(to, sizeof(T), n, f) != n) throw std::runtime_error("a file is too short");
}
template <class T> void put(std::FILE* f, const T* from, size_t n = 1)
{
    if (std::fwrite(from, sizeof(T), n, f) != n) throw std::runtime_error("can not write a file");
}

// SentencePiece's BPE, with a plain space in the pieces where SentencePiece has U+2581: so llama2.c writes them.
class Tokenizer {
public:
    // The ids in SentencePiece's order: specials, bytes, merged pieces from the first merge to the last, then single
    // characters from frequent to rare. The score falls by one with each id, so an earlier merge always wins.
    static Tokenizer learn(const std::vector<std::string>& texts)
    {
        std::map<std::string, long> words;
        std::map<char, long> letters;
        for (const std::string& text : texts) {
            for (const std::string& word : split(text)) words[word]++;
            for (char c : " " + text) letters[c]++;
        }
        Tokenizer t;
        for (const char* s : {"<unk>", "\n<s>\n", "\n</s>\n"}) t.add(s, 0);
        for (unsigned b = 0; b < 256; b++) {
            char name[8];
            std::snprintf(name, sizeof name, "<0x%02X>", b & 0xffu);
            t.add(name, 0);
        }
        std::vector<std::pair<std::vector<std::string>, long>> segmented;
        for (const auto& [word, count] : words) {
            segmented.emplace_back(std::vector<std::string>(), count);
            for (char c : word) segmented.back().first.emplace_back(1, c);
        }
        const size_t merges = vocab_size - first_piece - letters.size();
        for (size_t m = 0; m < merges; m++) {
            std::map<std::string, long> pairs;
            for (const auto& [p, count] : segmented)
                for (size_t i = 0; i + 1 < p.size(); i++)
                    if (mergeable(p[i] + p[i + 1])) pairs[p[i] + p[i + 1]] += count;
            std::string best;
            long best_count = 0;
            for (const auto& [piece, count] : pairs)
                if (count > best_count && t.index.count(piece) == 0) best = piece, best_count = count;
            if (best.empty()) throw std::runtime_error("the corpus is too small for the vocabulary");
            t.add(best, -static_cast<float>(m));
            for (auto& [p, count] : segmented)
                for (size_t i = 0; i + 1 < p.size(); i++)
                    if (p[i] + p[i + 1] == best) p[i] = best, p.erase(p.begin() + static_cast<long>(i) + 1);
        }
        std::vector<std::pair<long, char>> order;
        for (const auto& [c, count] : letters) order.emplace_back(-count, c);
        std::sort(order.begin(), order.end());
        for (const auto& entry : order)
            t.add(std::string(1, entry.second), -static_cast<float>(t.pieces.size() - first_piece));
        return t;
    }

    static Tokenizer load(const std::string& path)
    {
        std::FILE* f = open(path, "rb");
        Tokenizer t;
        int32_t longest = 0, length = 0;
        float score = 0;
        get(f, &longest);
        while (t.pieces.size() < vocab_size) {
            get(f, &score);
            get(f, &length);
            std::string piece(static_cast<size_t>(length), '\0');
            get(f, piece.data(), piece.size());
            t.add(piece, score);
        }
        std::fclose(f);
        return t;
    }

    void save(const std::string& path) const
    {
        std::FILE* f = open(path, "wb");
        int32_t longest = 0;
        for (const std::string& p : pieces) longest = std::max(longest, static_cast<int32_t>(p.size()));
        put(f, &longest);
        for (size_t i = 0; i < pieces.size(); i++) {
            const auto length = static_cast<int32_t>(pieces[i].size());
            put(f, &scores[i]);
            put(f, &length);
            put(f, pieces[i].data(), pieces[i].size());
        }
        if (std::fclose(f) != 0) throw std::runtime_error("can not write " + path);
    }

    // llama2.c's rule: a space in front, one id per character (its bytes where there is no such piece), then the adjacent
    // pair with the best merged score is merged until there is none.
    std::vector<int> encode(const std::string& text) const
    {
        std::vector<int> ids;
        const std::string spaced = text.empty() ? "" : " " + text;
        const auto byte = [&](size_t i) { return static_cast<unsigned char>(spaced[i]); };
        for (size_t i = 0, n = 1; i < spaced.size(); i += n) {
            for (n = 1; n < 4 && i + n < spaced.size() && (byte(i + n) & 0xc0) == 0x80; n++) {}
            const auto found = index.find(spaced.substr(i, n));
            if (found != index.end()) ids.push_back(found->second);
            else for (size_t k = i; k < i + n; k++) ids.push_back(byte(k) + static_cast<int>(first_byte));
        }
        for (;;) {
            float best = -1e10f;
            size_t at = 0;
            int merged = -1;
            for (size_t i = 0; i + 1 < ids.size(); i++) {
                const auto found = index.find(piece(ids[i]) + piece(ids[i + 1]));
                if (found == index.end() || scores[static_cast<size_t>(found->second)] <= best) continue;
                merged = found->second, best = scores[static_cast<size_t>(merged)], at = i;
            }
            if (merged < 0) return ids;
            ids[at] = merged;
            ids.erase(ids.begin() + static_cast<long>(at) + 1);
        }
    }

    // The same, by look-up for the words of remember(): no piece goes beyond a word.
    void remember(const std::vector<std::string>& texts)
    {
        for (const std::string& text : texts)
            for (const std::string& word : split(text))
                if (known.count(word) == 0) known[word] = encode(word.substr(1));
    }
    std::vector<int> encode_known(const std::string& text) const
    {
        std::vector<int> ids;
        for (const std::string& word : split(text)) {
            const auto found = known.find(word);
            const std::vector<int> part = found != known.end() ? found->second : encode(word.substr(1));
            ids.insert(ids.end(), part.begin(), part.end());
        }
        return ids;
    }

    // The text of ids[1..]; ids[0] is BOS, and the space after it is not printed.
    std::string decode(const std::vector<int>& ids) const
    {
        std::string text;
        for (size_t i = 1; i < ids.size(); i++) {
            const std::string& p = piece(ids[i]);
            unsigned byte = 0;
            if (std::sscanf(p.c_str(), "<0x%02X>", &byte) == 1) text += static_cast<char>(byte);
            else text += ids[i - 1] == bos && p[0] == ' ' ? p.substr(1) : p;
        }
        return text;
    }

private:
    const std::string& piece(int id) const { return pieces[static_cast<size_t>(id)]; }
    void add(const std::string& piece, float score)
    {
        index.emplace(piece, static_cast<int>(pieces.size()));
        pieces.push_back(piece);
        scores.push_back(score);
    }

    // The words of a text, each with its leading space.
    static std::vector<std::string> split(const std::string& text)
    {
        std::vector<std::string> words;
        for (char c : " " + text) {
            if (c == ' ') words.emplace_back();
            words.back() += c;
        }
        return words;
    }

    // Letters join with letters and marks with marks, as SentencePiece does by default: else much of a small vocabulary
    // would go to words with a comma.
    static bool mergeable(const std::string& p)
    {
        const auto is_mark = [](char c) { return std::strchr(".,!?\"'", c) != nullptr; };
        const auto first = p.begin() + (p[0] == ' ');
        return std::all_of(first, p.end(), is_mark) || std::none_of(first, p.end(), is_mark);
    }

    std::vector<std::string> pieces;
    std::vector<float> scores;
    std::unordered_map<std::string, int> index;
    std::unordered_map<std::string, std::vector<int>> known;
};

// ---- Network ---------------------------------------------------------------------------------------------------------

constexpr size_t dim = 64, hidden_dim = 192, n_layers = 6, n_heads = 8, n_kv_heads = 4, seq_len = 256;
constexpr size_t head_dim = dim / n_heads, kv_dim = n_kv_heads * head_dim;
constexpr float norm_eps = 1e-5f, rope_theta = 10000.0f;

// All weights lie in one array, in the order of the checkpoint.
struct Tensor {
    const char* name;
    size_t offset, layers, rows, cols;
    constexpr size_t at(size_t layer) const { return offset + layer * rows * cols; }
    constexpr size_t end() const { return at(layers); }
};
constexpr Tensor token_embedding{"token_embedding", 0, 1, vocab_size, dim};
constexpr Tensor attn_norm{"attn_norm", token_embedding.end(), n_layers, 1, dim};
constexpr Tensor wq{"wq", attn_norm.end(), n_layers, dim, dim};
constexpr Tensor wk{"wk", wq.end(), n_layers, kv_dim, dim};
constexpr Tensor wv{"wv", wk.end(), n_layers, kv_dim, dim};
constexpr Tensor wo{"wo", wv.end(), n_layers, dim, dim};
constexpr Tensor ffn_norm{"ffn_norm", wo.end(), n_layers, 1, dim};
constexpr Tensor gate{"gate (w1)", ffn_norm.end(), n_layers, hidden_dim, dim};
constexpr Tensor down{"down (w2)", gate.end(), n_layers, dim, hidden_dim};
constexpr Tensor up{"up (w3)", down.end(), n_layers, hidden_dim, dim};
constexpr Tensor final_norm{"final_norm", up.end(), 1, 1, dim};
constexpr Tensor tensors[] = {token_embedding, attn_norm, wq, wk, wv, wo, ffn_norm, gate, down, up, final_norm};
constexpr size_t n_params = final_norm.end();

// Sixteen floats at any address; the compilers split them where the machine's vectors are shorter.
constexpr size_t lanes = 16;
typedef float Vec __attribute__((vector_size(64)));
struct __attribute__((packed, may_alias)) Packed {
    Vec v;
};
inline const Packed& vec(const float* p) { return *reinterpret_cast<const Packed*>(p); }
inline Packed& vec(float* p) { return *reinterpret_cast<Packed*>(p); }
inline float sum(const Vec& v)
{
    float s = 0;
    for (size_t i = 0; i < lanes; i++) s += v[i];
    return s;
}

// `rows` x 32 elements of C += A B, with A(m, k) = a[m * sm + k * sk] and B packed.
template <size_t rows> void gemm_tile(size_t depth, const float* a, size_t sm, size_t sk, const float* b, float* c, size_t ldc)
{
    Vec acc[rows][2];
    for (size_t m = 0; m < rows; m++) acc[m][0] = vec(c + m * ldc).v, acc[m][1] = vec(c + m * ldc + lanes).v;
    for (size_t k = 0; k < depth; k++) {
        const Vec b0 = vec(b + k * 32).v, b1 = vec(b + k * 32 + lanes).v;
        for (size_t m = 0; m < rows; m++) acc[m][0] += a[m * sm + k * sk] * b0, acc[m][1] += a[m * sm + k * sk] * b1;
    }
    for (size_t m = 0; m < rows; m++) vec(c + m * ldc).v = acc[m][0], vec(c + m * ldc + lanes).v = acc[m][1];
}

// C[m][n] += A[m][k] B[k][n], n a multiple of 32. B is copied to narrow panels first: its rows may lie a power of two apart,
// where they push each other out of the cache.
void gemm(size_t m, size_t n, size_t k, const float* a, size_t sm, size_t sk, const float* b, float* c)
{
    constexpr size_t depth_max = 128;
    float panel[depth_max * 32];
    for (size_t k0 = 0; k0 < k; k0 += depth_max)
        for (size_t n0 = 0; n0 < n; n0 += 32) {
            const size_t depth = std::min(depth_max, k - k0);
            for (size_t i = 0; i < depth; i++) std::memcpy(panel + i * 32, b + (k0 + i) * n + n0, 32 * sizeof(float));
            size_t i = 0;
            for (; i + 8 <= m; i += 8) gemm_tile<8>(depth, a + i * sm + k0 * sk, sm, sk, panel, c + i * n + n0, n);
            for (; i < m; i++) gemm_tile<1>(depth, a + i * sm + k0 * sk, sm, sk, panel, c + i * n + n0, n);
        }
}

float softmax(float* z, size_t n, size_t wanted)
{
    float top = z[0], total = 0;
    for (size_t i = 1; i < n; i++) top = std::max(top, z[i]);
    for (size_t i = 0; i < n; i++) z[i] = std::exp(z[i] - top);
    for (size_t i = 0; i < n; i++) total += z[i];
    for (size_t i = 0; i < n; i++) z[i] /= total;
    return z[wanted];
}

// y += x W^T for one layer's matrix, given its transposed copy.
void linear(const Tensor& t, size_t layer, const float* wt, size_t n, const std::vector<float>& x, std::vector<float>& y)
{
    gemm(n, t.rows, t.cols, x.data(), t.cols, 1, wt + t.at(layer), y.data());
}

using Head = float[head_dim][seq_len];  // one head of k or v, a position per column

// What is to be said, and what the network sees of it: see make_row().
struct Row {
    std::vector<int> ids, seen;
};

// What one thread needs to run sequences, one at a time; their gradients are summed in `grad`.
class Worker {
public:
    std::vector<float> grad;

    // `weights` and their transposed copy stay with the caller.
    Worker(const float* weights, const float* transposed) : grad(n_params), w(weights), wt(transposed)
    {
        for (size_t t = 0; t < seq_len; t++)
            for (size_t i = 0; i < head_dim / 2; i++) {
                const float power = -2.0f * static_cast<float>(i) / static_cast<float>(head_dim);
                const float angle = static_cast<float>(t) * std::pow(rope_theta, power);
                cosine[t][i] = std::cos(angle), sine[t][i] = std::sin(angle);
            }
    }

    static void transpose(const std::vector<float>& from, std::vector<float>& to)
    {
        for (const Tensor& t : tensors)
            for (size_t l = 0; l < t.layers; l++)
                for (size_t r = 0; r < t.rows; r++)
                    for (size_t c = 0; c < t.cols; c++) to[t.at(l) + c * t.rows + r] = from[t.at(l) + r * t.cols + c];
    }

    // The logits of the last position.
    const float* next(const std::vector<int>& ids)
    {
        n = ids.size();
        forward(ids.data());
        return &logits[(n - 1) * vocab_size];
    }

    // The sum over ids[1..] of -log p. With `scale` > 0 the gradient of scale * loss is added to grad.
    double loss(const Row& row, float scale)
    {
        n = row.ids.size() - 1;
        forward(row.seen.data());
        double total = 0;
        for (size_t t = 0; t < n; t++) {
            float* z = &logits[t * vocab_size];
            const auto target = static_cast<size_t>(row.ids[t + 1]);
            total -= std::log(std::max(static_cast<double>(softmax(z, vocab_size, target)), 1e-30));
            z[target] -= 1.0f;
            for (size_t i = 0; i < vocab_size; i++) z[i] *= scale;
        }
        if (scale > 0) backward(row.seen.data());
        return total;
    }

private:
    static std::vector<float> rows_of(size_t width) { return std::vector<float>(seq_len * width); }

    struct Layer {
        std::vector<float> in = rows_of(dim), normed = in, inv = rows_of(1), q = in, k = rows_of(kv_dim), v = k, att = in;
        std::vector<float> mid = in, mid_normed = in, mid_inv = inv, g = rows_of(hidden_dim), u = g, hidden = g;
    };

    // dx += dy W and dW += dy^T x.
    void linear_back(const Tensor& t, size_t layer, const std::vector<float>& x, const std::vector<float>& dy,
                     std::vector<float>& dx)
    {
        gemm(n, t.cols, t.rows, dy.data(), t.rows, 1, w + t.at(layer), dx.data());
        gemm(t.rows, t.cols, n, dy.data(), 1, t.rows, x.data(), &grad[t.at(layer)]);
    }

    void norm(const Tensor& t, size_t layer, const std::vector<float>& x, std::vector<float>& y, std::vector<float>& inv) const
    {
        for (size_t p = 0; p < n; p++) {
            const float *in = &x[p * dim], *weight = w + t.at(layer);
            float* out = &y[p * dim];
            float squares = 0;
            for (size_t i = 0; i < dim; i++) squares += in[i] * in[i];
            inv[p] = 1.0f / std::sqrt(squares / static_cast<float>(dim) + norm_eps);
            for (size_t i = 0; i < dim; i++) out[i] = in[i] * inv[p] * weight[i];
        }
    }

    // Adds to dx what dy means before the norm.
    void norm_back(const Tensor& t, size_t layer, const std::vector<float>& x, const std::vector<float>& inv,
                   const std::vector<float>& dy, std::vector<float>& dx)
    {
        float* dw = &grad[t.at(layer)];
        for (size_t p = 0; p < n; p++) {
            const float *in = &x[p * dim], *dout = &dy[p * dim], *weight = w + t.at(layer), r = inv[p];
            float *din = &dx[p * dim], dot = 0;
            for (size_t i = 0; i < dim; i++) dot += dout[i] * weight[i] * in[i];
            dot *= r * r * r / static_cast<float>(dim);
            for (size_t i = 0; i < dim; i++) {
                dw[i] += dout[i] * in[i] * r;
                din[i] += dout[i] * weight[i] * r - in[i] * dot;
            }
        }
    }

    // Turns the pairs (2i, 2i + 1) of each head; `sign` -1 turns back, for gradients.
    void rope(std::vector<float>& x, size_t heads, float sign) const
    {
        for (size_t t = 0; t < n; t++)
            for (size_t h = 0; h < heads; h++)
                for (size_t i = 0; i < head_dim / 2; i++) {
                    float* p = &x[(t * heads + h) * head_dim + 2 * i];
                    const float a = p[0], b = p[1], c = cosine[t][i], s = sign * sine[t][i];
                    p[0] = a * c - b * s, p[1] = a * s + b * c;
                }
    }

    void to_head(const std::vector<float>& x, size_t head, Head& out) const
    {
        std::memset(out, 0, sizeof out);
        for (size_t t = 0; t < n; t++)
            for (size_t i = 0; i < head_dim; i++) out[i][t] = x[t * kv_dim + head * head_dim + i];
    }

    // Without `datt` fills a.att; with it, adds to dq, dk and dv. A position sees the positions from the start of its own
    // story, so that the stories of a row do not mix. The probabilities are made anew for the backward pass: they would be
    // by far the largest thing to keep.
    void attention(Layer& a, const float* datt, float* dq, float* dk, float* dv)
    {
        const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        for (size_t kv = 0; kv < n_kv_heads; kv++) {
            to_head(a.k, kv, k_head);
            to_head(a.v, kv, v_head);
            std::memset(dk_head, 0, sizeof dk_head);
            std::memset(dv_head, 0, sizeof dv_head);
            for (size_t h = kv * n_heads / n_kv_heads; h < (kv + 1) * n_heads / n_kv_heads; h++)
                for (size_t t = 0; t < n; t++) {
                    const size_t at = t * dim + h * head_dim;
                    const size_t from = start[t] / lanes * lanes, to = (t / lanes + 1) * lanes;    // whole vectors
                    float q[head_dim];
                    for (size_t i = 0; i < head_dim; i++) q[i] = a.q[at + i] * scale;
                    for (size_t s = from; s < to; s += lanes) {
                        Vec dot = {};
                        for (size_t i = 0; i < head_dim; i++) dot += q[i] * vec(&k_head[i][s]).v;
                        vec(prob + s).v = dot;
                    }
                    for (size_t s = from; s < start[t]; s++) prob[s] = -1e30f;
                    for (size_t s = t + 1; s < to; s++) prob[s] = -1e30f;
                    softmax(prob + from, to - from, 0);

                    Vec acc[head_dim] = {};
                    if (datt == nullptr) {
                        for (size_t s = from; s < to; s += lanes)
                            for (size_t i = 0; i < head_dim; i++) acc[i] += vec(prob + s).v * vec(&v_head[i][s]).v;
                        for (size_t i = 0; i < head_dim; i++) a.att[at + i] = sum(acc[i]);
                        continue;
                    }
                    const float* d = datt + at;
                    Vec dots = {};
                    for (size_t s = from; s < to; s += lanes) {
                        Vec dp = {};
                        for (size_t i = 0; i < head_dim; i++) {
                            dp += d[i] * vec(&v_head[i][s]).v;
                            vec(&dv_head[i][s]).v += d[i] * vec(prob + s).v;
                        }
                        vec(dprob + s).v = dp;
                        dots += dp * vec(prob + s).v;
                    }
                    const float dot = sum(dots);
                    for (size_t s = from; s < to; s += lanes) {
                        const Vec ds = vec(prob + s).v * (vec(dprob + s).v - dot);
                        for (size_t i = 0; i < head_dim; i++) {
                            vec(&dk_head[i][s]).v += q[i] * ds;
                            acc[i] += ds * vec(&k_head[i][s]).v;
                        }
                    }
                    for (size_t i = 0; i < head_dim; i++) dq[at + i] = sum(acc[i]) * scale;
                }
            for (size_t t = 0; datt != nullptr && t < n; t++)
                for (size_t i = 0; i < head_dim; i++) {
                    dk[t * kv_dim + kv * head_dim + i] = dk_head[i][t];
                    dv[t * kv_dim + kv * head_dim + i] = dv_head[i][t];
                }
        }
    }

    void forward(const int* ids)
    {
        for (size_t t = 0; t < n; t++) {
            start[t] = ids[t] == bos || t == 0 ? t : start[t - 1];
            std::memcpy(&layers[0].in[t * dim], w + static_cast<size_t>(ids[t]) * dim, dim * sizeof(float));
        }
        for (size_t l = 0; l < n_layers; l++) {
            Layer& a = layers[l];
            for (std::vector<float>* x : {&a.q, &a.k, &a.v, &a.g, &a.u}) std::fill(x->begin(), x->end(), 0.0f);
            norm(attn_norm, l, a.in, a.normed, a.inv);
            linear(wq, l, wt, n, a.normed, a.q);
            linear(wk, l, wt, n, a.normed, a.k);
            linear(wv, l, wt, n, a.normed, a.v);
            rope(a.q, n_heads, 1);
            rope(a.k, n_kv_heads, 1);
            attention(a, nullptr, nullptr, nullptr, nullptr);
            a.mid = a.in;
            linear(wo, l, wt, n, a.att, a.mid);
            norm(ffn_norm, l, a.mid, a.mid_normed, a.mid_inv);
            linear(gate, l, wt, n, a.mid_normed, a.g);
            linear(up, l, wt, n, a.mid_normed, a.u);
            for (size_t i = 0; i < n * hidden_dim; i++) a.hidden[i] = a.g[i] / (1.0f + std::exp(-a.g[i])) * a.u[i];
            std::vector<float>& out = l + 1 < n_layers ? layers[l + 1].in : last;
            out = a.mid;
            linear(down, l, wt, n, a.hidden, out);
        }
        norm(final_norm, 0, last, last_normed, last_inv);
        std::fill(logits.begin(), logits.end(), 0.0f);
        linear(token_embedding, 0, wt, n, last_normed, logits);
    }

    // Starts from the gradient of the logits, which loss() has put in their place.
    void backward(const int* ids)
    {
        std::vector<float> dx = rows_of(dim), dnormed = dx, dq = dx, dk = rows_of(kv_dim), dv = dk;
        std::vector<float> dhidden = rows_of(hidden_dim), dg = dhidden, du = dhidden;
        const auto clear = [](std::vector<float>& x) { std::fill(x.begin(), x.end(), 0.0f); };
        linear_back(token_embedding, 0, last_normed, logits, dnormed);
        norm_back(final_norm, 0, last, last_inv, dnormed, dx);
        for (size_t l = n_layers; l-- > 0;) {
            Layer& a = layers[l];
            clear(dhidden);
            linear_back(down, l, a.hidden, dx, dhidden);
            for (size_t i = 0; i < n * hidden_dim; i++) {
                const float sigmoid = 1.0f / (1.0f + std::exp(-a.g[i]));
                du[i] = dhidden[i] * a.g[i] * sigmoid;
                dg[i] = dhidden[i] * a.u[i] * sigmoid * (1.0f + a.g[i] * (1.0f - sigmoid));
            }
            clear(dnormed);
            linear_back(gate, l, a.mid_normed, dg, dnormed);
            linear_back(up, l, a.mid_normed, du, dnormed);
            norm_back(ffn_norm, l, a.mid, a.mid_inv, dnormed, dx);

            clear(dnormed);    // here the gradient of a.att
            linear_back(wo, l, a.att, dx, dnormed);
            attention(a, dnormed.data(), dq.data(), dk.data(), dv.data());
            rope(dq, n_heads, -1);
            rope(dk, n_kv_heads, -1);
            clear(dnormed);
            linear_back(wq, l, a.normed, dq, dnormed);
            linear_back(wk, l, a.normed, dk, dnormed);
            linear_back(wv, l, a.normed, dv, dnormed);
            norm_back(attn_norm, l, a.in, a.inv, dnormed, dx);
        }
        for (size_t t = 0; t < n; t++)
            for (size_t i = 0; i < dim; i++) grad[static_cast<size_t>(ids[t]) * dim + i] += dx[t * dim + i];
    }

    const float *w, *wt;
    size_t n = 0;
    size_t start[seq_len] = {};    // where the story of each position begins
    std::array<Layer, n_layers> layers;
    std::vector<float> last = rows_of(dim), last_normed = last, last_inv = rows_of(1), logits = rows_of(vocab_size);
    float cosine[seq_len][head_dim / 2], sine[seq_len][head_dim / 2], prob[seq_len], dprob[seq_len];
    Head k_head, v_head, dk_head, dv_head;
};

// ---- Training --------------------------------------------------------------------------------------------------------

struct Options {
    std::string out = ".", prompt;
    size_t steps = 11000, batch = 16, threads = 2, sample = 0, corpus = 0;
    uint64_t seed = 1;
    float rate = 4e-3f, temp = 0.8f;
    bool check = false, resume = false;
};

constexpr int32_t v0_header[7] = {dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len};

void save_checkpoint(const std::string& path, const std::vector<float>& w)
{
    const std::string part = path + ".part";    // renamed when whole: nobody sees half a file
    std::FILE* f = open(part, "wb");
    const std::vector<float> unused(seq_len * head_dim);    // the two RoPE tables of the format
    put(f, v0_header, 7);
    put(f, w.data(), w.size());
    put(f, unused.data(), unused.size());
    if (std::fclose(f) != 0 || std::rename(part.c_str(), path.c_str()) != 0) throw std::runtime_error("can not write " + path);
}

std::vector<float> load_checkpoint(const std::string& path)
{
    std::FILE* f = open(path, "rb");
    int32_t header[7];
    std::vector<float> w(n_params);
    get(f, header, 7);
    if (std::memcmp(header, v0_header, sizeof header) != 0) throw std::runtime_error(path + " has other sizes");
    get(f, w.data(), w.size());
    std::fclose(f);
    return w;
}

std::vector<float> init(uint64_t seed)
{
    Rng rng{seed};
    std::vector<float> w(n_params, 1.0f);
    for (const Tensor& t : tensors) {
        if (t.rows == 1) continue;
        // What is added to the residual stream starts smaller, for the stream to keep its size.
        const bool to_stream = t.offset == wo.offset || t.offset == down.offset;
        const float fan = 1.0f / std::sqrt(static_cast<float>(t.cols));
        const float size = t.offset == 0 ? 0.05f : to_stream ? fan / std::sqrt(2.0f * n_layers) : 0.7f * fan;
        for (size_t i = t.offset; i < t.end(); i++) w[i] = size * rng.normal();
    }
    return w;
}

// A row begins with BOS and a whole story, and more stories fill it up. BOS after a story is what ends a generation.
// In some stories the network sees a few random tokens in place of the true ones, often at the beginning. So it learns to go
// on with a story after words that the grammar does not know, as in the prompt of a user.
Row make_row(const Tokenizer& tokenizer, uint64_t seed)
{
    Storyteller teller(seed);
    Rng rng{~seed};
    Row row;
    while (row.ids.size() < seq_len + 1) {
        std::vector<int> ids = tokenizer.encode_known(teller.tell());
        ids.insert(ids.begin(), bos);
        row.ids.insert(row.ids.end(), ids.begin(), ids.end());
        if (rng.below(4) == 0) {
            const size_t from = rng.below(2) == 0 ? 1 : 1 + rng.below(ids.size() - 1), length = 1 + rng.below(8);
            for (size_t i = from; i < std::min(from + length, ids.size()); i++)
                ids[i] = static_cast<int>(rng.below(4) == 0 ? first_byte + rng.below(256)
                                                            : first_piece + rng.below(vocab_size - first_piece));
        }
        row.seen.insert(row.seen.end(), ids.begin(), ids.end());
    }
    row.ids.resize(seq_len + 1);
    row.seen.resize(seq_len + 1);
    return row;
}

void train(const Options& o)
{
    const std::string weights_path = o.out + "/stories_f32.bin", tokenizer_path = o.out + "/tokenizer.bin";
    const std::vector<std::string> corpus = stories(20000, o.seed);
    Tokenizer tokenizer = o.resume ? Tokenizer::load(tokenizer_path) : Tokenizer::learn(corpus);
    tokenizer.remember(corpus);
    if (!o.resume) tokenizer.save(tokenizer_path);
    std::vector<float> w = o.resume ? load_checkpoint(weights_path) : init(o.seed), wt(n_params), m(n_params), v(n_params),
        decay(n_params);
    for (const Tensor& t : tensors)
        for (size_t i = t.offset; i < t.end() && t.rows > 1; i++) decay[i] = 0.05f;
    std::vector<Worker> workers(o.threads, Worker(w.data(), wt.data()));
    std::fprintf(stderr, "%zu parameters, %zu steps of %zu x %zu tokens\n", n_params, o.steps, o.batch, seq_len);

    constexpr float beta1 = 0.9f, beta2 = 0.98f, clip = 1.0f;
    const auto begin = std::chrono::steady_clock::now();
    const size_t tokens = o.batch * seq_len, warmup = std::min<size_t>(200, o.steps / 10 + 1);
    double recent = 0;
    for (size_t step = 1; step <= o.steps; step++) {
        Worker::transpose(w, wt);
        std::vector<double> losses(o.threads);
        const auto work = [&](size_t id) {
            std::fill(workers[id].grad.begin(), workers[id].grad.end(), 0.0f);
            for (size_t r = id; r < o.batch; r += o.threads) {
                Rng rng{o.seed * 1000003u + step * o.batch + r};
                losses[id] += workers[id].loss(make_row(tokenizer, rng.next()), 1.0f / static_cast<float>(tokens));
            }
        };
        std::vector<std::thread> threads;
        for (size_t id = 1; id < o.threads; id++) threads.emplace_back(work, id);
        work(0);
        for (std::thread& t : threads) t.join();

        std::vector<float>& g = workers[0].grad;
        for (size_t id = 1; id < o.threads; id++)
            for (size_t i = 0; i < n_params; i++) g[i] += workers[id].grad[i];
        float squares = 0;
        for (size_t i = 0; i < n_params; i++) squares += g[i] * g[i];
        const float length = std::sqrt(squares), shrink = length > clip ? clip / length : 1.0f;

        const auto now = static_cast<float>(step), end = static_cast<float>(o.steps), warm = static_cast<float>(warmup);
        const float wave = 0.5f + 0.5f * std::cos(3.14159265f * (now - warm) / std::max(end - warm, 1.0f));
        const float rate = o.rate * (step < warmup ? now / warm : 0.01f + 0.99f * wave);
        const float fix1 = 1.0f / (1.0f - std::pow(beta1, now)), fix2 = 1.0f / (1.0f - std::pow(beta2, now));
        for (size_t i = 0; i < n_params; i++) {
            const float d = g[i] * shrink;
            m[i] = beta1 * m[i] + (1 - beta1) * d;
            v[i] = beta2 * v[i] + (1 - beta2) * d * d;
            w[i] -= rate * (m[i] * fix1 / (std::sqrt(v[i] * fix2) + 1e-8f) + decay[i] * w[i]);
        }

        for (double loss : losses) recent += loss / static_cast<double>(tokens);
        if (step % 100 == 0) {
            const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            std::fprintf(stderr, "step %6zu  loss %.4f  rate %.5f  gradient %.3f  %.0f tokens/s  %.0f s\n", step, recent / 100,
                         static_cast<double>(rate), static_cast<double>(length),
                         static_cast<double>(step * tokens) / seconds, seconds);
            recent = 0;
        }
        if (step % 500 == 0 || step == o.steps) save_checkpoint(weights_path, w);
    }
}

// ---- Samples and checks ----------------------------------------------------------------------------------------------

void sample(const Options& o)
{
    const Tokenizer tokenizer = Tokenizer::load(o.out + "/tokenizer.bin");
    const std::vector<float> w = load_checkpoint(o.out + "/stories_f32.bin");
    std::vector<float> wt(n_params), p(vocab_size);
    Worker::transpose(w, wt);
    Worker worker(w.data(), wt.data());
    Rng rng{o.seed};
    for (size_t s = 0; s < o.sample; s++) {
        std::vector<int> ids = tokenizer.encode(o.prompt);
        ids.insert(ids.begin(), bos);
        bool ended = false;
        while (!ended && ids.size() < seq_len) {
            const float* z = worker.next(ids);
            auto pick = static_cast<size_t>(std::max_element(z, z + vocab_size) - z);
            if (o.temp > 0) {
                for (size_t i = 0; i < vocab_size; i++) p[i] = z[i] / o.temp;
                softmax(p.data(), vocab_size, 0);
                float left = rng.uniform();
                for (pick = 0; pick + 1 < vocab_size && left >= p[pick]; pick++) left -= p[pick];
            }
            ended = pick == static_cast<size_t>(bos);
            if (!ended) ids.push_back(static_cast<int>(pick));
        }
        std::printf("%s\n[%zu tokens%s]\n\n", tokenizer.decode(ids).c_str(), ids.size() - 1, ended ? "" : ", cut");
    }
}

// Moves each tensor along its own gradient, cut to a random half of its elements lest errors in some of them hide: the loss
// has to change by as much as the gradient says.
bool check(const Options& o)
{
    const std::vector<std::string> corpus = stories(20000, o.seed);
    Tokenizer tokenizer = Tokenizer::learn(corpus);
    tokenizer.remember(corpus);
    bool good = true;
    size_t total = 0, longest = 0;
    for (const std::string& story : stories(500, o.seed + 1)) {
        std::vector<int> ids = tokenizer.encode(story);
        good = good && ids == tokenizer.encode_known(story);
        total += ids.size(), longest = std::max(longest, ids.size());
        ids.insert(ids.begin(), bos);
        good = good && tokenizer.decode(ids) == story;
    }
    std::printf("tokenizer %s, %.1f tokens a story, longest %zu\n", good ? "good" : "WRONG",
                static_cast<double>(total) / 500, longest);

    std::vector<float> w = init(o.seed), wt(n_params);
    Rng rng{o.seed};
    for (float& x : w) x = x * 1.5f + 0.1f * rng.normal();    // no weight of 1, no gradient near 0
    Worker::transpose(w, wt);
    Worker worker(w.data(), wt.data());
    const Row row = make_row(tokenizer, o.seed);
    const float scale = 1.0f / static_cast<float>(seq_len);
    worker.loss(row, scale);
    for (const Tensor& t : tensors)
        for (int turn = 0; turn < 3; turn++) {
            std::vector<float> direction(n_params);
            double squares = 0, side[2];
            for (size_t i = t.offset; i < t.end(); i++) {
                direction[i] = rng.below(2) == 0 ? worker.grad[i] : 0.0f;
                squares += static_cast<double>(direction[i]) * static_cast<double>(direction[i]);
            }
            const double length = std::sqrt(squares), step = 0.001;
            for (int k = 0; k < 2; k++) {
                std::vector<float> moved(w);
                const auto factor = static_cast<float>((k == 0 ? step : -step) / length);
                for (size_t i = t.offset; i < t.end(); i++) moved[i] += factor * direction[i];
                Worker::transpose(moved, wt);
                side[k] = Worker(moved.data(), wt.data()).loss(row, 0) * static_cast<double>(scale);
            }
            const double found = (side[0] - side[1]) / (2 * step), error = std::fabs(found - length) / length;
            good = good && error < 0.01;
            std::printf("%-16s gradient %.6f  difference %.6f  error %.4f%s\n", t.name, length, found, error,
                        error < 0.01 ? "" : "  WRONG");
        }
    return good;
}

// ---- Main ------------------------------------------------------------------------------------------------------------

Options parse(int argc, char** argv)
{
    Options o;
    for (int i = 1; i < argc; i++) {
        const std::string key = argv[i];
        if (key == "--check" || key == "--resume") {
            (key == "--check" ? o.check : o.resume) = true;
            continue;
        }
        if (++i >= argc) throw std::runtime_error("unknown option or no value: " + key);
        const char* value = argv[i];
        const auto count = static_cast<size_t>(std::strtoull(value, nullptr, 10));
        if (key == "--out") o.out = value;
        else if (key == "--prompt") o.prompt = value;
        else if (key == "--steps") o.steps = count;
        else if (key == "--batch") o.batch = std::max<size_t>(count, 1);
        else if (key == "--threads") o.threads = std::max<size_t>(count, 1);
        else if (key == "--sample") o.sample = count;
        else if (key == "--corpus") o.corpus = count;
        else if (key == "--seed") o.seed = count;
        else if (key == "--lr") o.rate = std::strtof(value, nullptr);
        else if (key == "--temp") o.temp = std::strtof(value, nullptr);
        else throw std::runtime_error("unknown option: " + key);
    }
    return o;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        const Options o = parse(argc, argv);
        if (o.check) return check(o) ? 0 : 1;
        for (const std::string& story : stories(o.corpus, o.seed)) std::printf("%s\n\n", story.c_str());
        if (o.sample > 0) sample(o);
        else if (o.corpus == 0) train(o);
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "train: %s\n", e.what());
        return 1;
    }
}
