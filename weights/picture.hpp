// weights/picture.hpp - pictures in SVG: the blocks of a model, in the manner of the papers, and attention weights
//
// A figure is drawn from the bottom up, as the papers draw it: a column for each stack, a panel for each kind of block,
// in it the sub-layers that block.hpp describes, with the residual line around each.
#ifndef TRANSFORMER_WEIGHTS_PICTURE_HPP
#define TRANSFORMER_WEIGHTS_PICTURE_HPP

#include "block.hpp"

#include <cctype>
#include <cstdlib>

namespace weights {

// ---- Shapes ---------------------------------------------------------------------------------------------------------

struct Point {
    int x, y;
};
inline int sign(int n) { return (n > 0) - (n < 0); }

// What is drawn, and the space that it takes.
class Picture {
public:
    void box(int x, int y, int w, int h, const char* css, int radius = 5)
    {
        body_ += format("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\" class=\"%s\"/>\n", x, y, w, h,
                        radius, css);
        hold(x, y, x + w, y + h);
    }
    // `anchor`: -1: x is the text's left end, 0: its middle, 1: its right end.
    void text(int x, int y, const char* css, int size, const std::string& words, int anchor = 0)
    {
        static const char* const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
        body_ += format("<text x=\"%d\" y=\"%d\" class=\"%s\" font-size=\"%d\"", x, y, css, size);
        body_ += anchors[anchor + 1] + (">" + xml_text(signs(words)) + "</text>\n");
        const int width = static_cast<int>(words.size()) * size * 11 / 20;
        hold(x - width * (anchor + 1) / 2, y - size, x + width * (1 - anchor) / 2, y + size / 3);
    }
    // A line with rounded corners through these points.
    void line(const std::vector<Point>& points, const char* css)
    {
        std::string path = format("M%d %d", points[0].x, points[0].y);
        for (size_t i = 1; i < points.size(); i++) {
            const Point p = points[i];
            hold(p.x, p.y, p.x, p.y);
            if (i + 1 == points.size()) {
                path += format("L%d %d", p.x, p.y);
                continue;
            }
            const Point a = points[i - 1], b = points[i + 1];
            const int r = std::min({9, std::max(std::abs(p.x - a.x), std::abs(p.y - a.y)),
                                    std::max(std::abs(b.x - p.x), std::abs(b.y - p.y))});
            path += format("L%d %dQ%d %d %d %d", p.x - r * sign(p.x - a.x), p.y - r * sign(p.y - a.y), p.x, p.y,
                           p.x + r * sign(b.x - p.x), p.y + r * sign(b.y - p.y));
        }
        body_ += "<path d=\"" + path + "\" class=\"" + css + "\"/>\n";
    }
    void arrow(const std::vector<Point>& points) { line(points, "a"); }
    void plus(int x, int y)
    {
        body_ += format("<circle cx=\"%d\" cy=\"%d\" r=\"%d\" class=\"o\"/>", x, y, plus_radius);
        body_ += format("<path d=\"M%d %dh12M%d %dv12\" class=\"l\"/>\n", x - 6, y, x, y - 6);
        hold(x - plus_radius, y - plus_radius, x + plus_radius, y + plus_radius);
    }
    void squares(double x, int y, int n, double step, int size, const char* css) // in a row
    {
        std::string path;
        for (int i = 0; i < n; i++) path += format("M%.1f %dh%dv%dh-%dz", x + i * step, y, size, size, size);
        body_ += "<path d=\"" + path + "\" class=\"" + css + "\"/>\n";
    }
    void panel(int x, int y, int w, int h)                     // below all else
    {
        body_.swap(under_);
        box(x, y, w, h, "panel", 14);
        body_.swap(under_);
    }
    void raw(const std::string& element) { body_ += element; }
    int left() const { return left_; }
    int right() const { return right_; }
    int top() const { return top_; }

    std::string svg(const std::string& title) const
    {
        static const char* const style = R"(<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5"
markerWidth="7" markerHeight="7" orient="auto"><path d="M0 1 10 5 0 9z" fill="#444"/></marker></defs>
<style>
rect{stroke:#555;stroke-width:1.1}text{fill:#222}.t{font-weight:600}.f{fill:#4a4a4a}.n{fill:#777}.w{fill:#fff}
.l,.a,.d,.o{fill:none;stroke:#444;stroke-width:1.3}.a{marker-end:url(#tip)}.d{stroke:#aaa;stroke-dasharray:3 3}
.o{fill:#fff}.page{fill:#fff;stroke:none}.panel{fill:#f5f5f2;stroke:#9a9a94}
.attn{fill:#fbe3c0}.cross{fill:#f7d3c4}.ffn{fill:#cde5f1}.norm{fill:#f2efc4}.emb{fill:#f6dade}.head{fill:#dcd8ee}
.router{fill:#d5e8cd}.inner{fill:#e9f3f8;stroke:#8fb3c5}.off{fill:#fff;stroke:#a9c4d2}
.q{fill:#d39a52}.k{fill:#8a5a1c}.latent{fill:#8a5a1c;stroke:none}
</style>
)";
        const int margin = 16, x = left_ - margin, y = top_ - margin;
        const int w = right_ + margin - x, h = bottom_ + margin - y;
        return format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"%d %d %d %d\" "
                      "role=\"img\" font-family=\"Helvetica,Arial,'Liberation Sans',sans-serif\">\n",
                      w, h, x, y, w, h) +
               "<title>" + xml_text(title) + "</title>\n" + style +
               format("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"page\"/>\n", x, y, w, h) + under_ +
               body_ + "</svg>\n";
    }
    static constexpr int plus_radius = 9;

private:
    static std::string signs(std::string words)
    {
        static constexpr const char* list[][2] = {{"->", "\xe2\x86\x92"}, {" x ", " \xc3\x97 "}, {" * ", " \xc2\xb7 "}};
        for (const auto& [plain, sign] : list)
            for (size_t at; (at = words.find(plain)) != std::string::npos;) words.replace(at, std::strlen(plain), sign);
        return words;
    }
    void hold(int x0, int y0, int x1, int y1)
    {
        left_ = std::min(left_, x0), top_ = std::min(top_, y0);
        right_ = std::max(right_, x1), bottom_ = std::max(bottom_, y1);
    }
    std::string body_, under_;
    int left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;
};

// ---- The figure of a model ------------------------------------------------------------------------------------------

// One stack, growing upwards from y along the line x.
class Column {
public:
    // The residual lines run on one side (-1: left, 1: right), how often a panel repeats stands on one.
    Column(Picture& picture, const Source& source, uint32_t which, int residual_side, int times_side)
        : p(picture), s(source), stack(which), c(config_of(source, which)), side(residual_side), label(times_side)
    {
    }
    // What stands below the blocks: where rows come from, and what is added to them.
    void input()
    {
        const auto shape = [](const TensorSource& t) { return digits(t.rows) + " x " + digits(t.cols); };
        if (const TensorSource* t = find_tensor(s, stack, Role::conv1)) {
            begin(format("log-mel frames, %u bins", c.n_features));
            stage("emb", "Convolution", {"3 frames, GELU", shape(*t)});
            stage("emb", "Convolution", {"3 frames, stride 2, GELU"});
        } else if (const TensorSource* embedding = find_tensor(s, stack, Role::token_embedding)) {
            begin(stack ? "source tokens" : s.encoder.n_layers ? "target tokens" : "tokens");
            stage("emb", "Token embedding", {shape(*embedding)});
        } else {
            begin("rows of " + digits(c.dim));
        }
        if (const TensorSource* t = find_tensor(s, stack, Role::type_embedding)) add("emb", "Token types", shape(*t));
        if (const TensorSource* t = find_tensor(s, stack, Role::position_embedding))
            add("emb", "Position table", shape(*t));
        if (c.flags & transformer::flag_sinusoidal) sinusoids();
        if (find_tensor(s, stack, Role::embedding_norm)) norm();
        if (find_tensor(s, stack, Role::embedding_proj))
            stage("emb", "Projection", {digits(c.embedding_dim) + " -> " + digits(c.dim)});
    }
    void blocks()
    {
        for (const BlockKind& k : kinds_of(s, stack)) panel(k);
        if (find_tensor(s, stack, Role::final_norm)) norm();
        if (find_tensor(s, stack, Role::final_proj))
            stage("emb", "Projection", {digits(c.dim) + " -> " + digits(c.embedding_dim)});
    }
    void output()                                              // of the main stack: the head, and what comes out
    {
        static const char* const pooled[] = {"", "first row", "mean of the rows", "last row"};
        const TensorSource *dense = find_tensor(s, 0, Role::head_dense), *head = find_tensor(s, 0, Role::lm_head);
        const bool labels = c.n_outputs && c.n_outputs != c.vocab_size;
        std::vector<std::string> facts;
        if (c.pooling != transformer::Pooling::none) stage("head", "Pooling", {pooled[static_cast<size_t>(c.pooling)]});
        if (dense)
            stage("head", "Dense",
                  {digits(dense->cols) + " -> " + digits(dense->rows) + ", " + activation_name(c.head_activation)});
        if (find_tensor(s, 0, Role::head_norm)) norm();
        if (head) {
            facts.push_back(digits(head->rows) + " x " + digits(head->cols));
            if (is_tied(s, *head)) facts.push_back("tied to the embedding");
            if (c.logit_softcap != 0.0f) facts.push_back(format("soft-cap %g", static_cast<double>(c.logit_softcap)));
            stage("head", labels ? "Classifier" : "Language-model head", facts);
        }
        p.arrow({{x, y}, {x, y - 24}});
        y -= 28;
        p.text(x, y - 2, "f", 12, !head ? "hidden states" : labels ? "scores of the labels" : "logits");
        y -= 14;
    }
    int reach() const                                          // from x to the edge of a panel
    {
        return residual() + 16;
    }
    Picture& p;
    const Source& s;
    const uint32_t stack;
    const Config& c;
    const int side, label;
    int x = 0, y = 0;
    std::vector<Point> memory;                                 // where cross attention wants the encoder's output

private:
    static constexpr int body_width = 250, twin_width = 220, norm_width = 120, gap = 20;
    int residual() const { return (parallel(c) ? twin_width + 12 : body_width / 2) + 18; }

    void begin(const std::string& words)
    {
        p.text(x, y, "f", 12, words);
        y -= 16;
    }
    void rise(int n)
    {
        p.line({{x, y}, {x, y - n}}, "l");
        y -= n;
    }
    // An arrow into a box, whose top is where the column goes on. `fork`: three arrow heads, for q, k and v.
    void stage(const char* css, const std::string& title, const std::vector<std::string>& facts, bool fork = false)
    {
        y = stage_at(x, y, css, title, facts, body_width, fork);
    }
    void norm() { y = norm_at(x, y); }
    int norm_at(int at, int from) { return stage_at(at, from, "norm", norm_name(c), {}, norm_width, false); }
    int stage_at(int at, int from, const char* css, const std::string& title, const std::vector<std::string>& facts,
                 int width, bool fork)
    {
        const std::vector<std::string> lines = packed(facts, static_cast<size_t>(width - 14) / 5);
        const bool heads = fork && (c.kv_lora_rank || (c.n_heads <= 64 && c.n_heads > 1));
        const int art = heads ? 24 : 0, bottom = from - gap - (fork ? 8 : 0);
        const int height = 24 + 13 * static_cast<int>(lines.size()) + (lines.empty() ? 0 : 3) + art,
                  top = bottom - height;
        p.arrow({{at, from}, {at, bottom}});
        for (const int way : {-1, 1})
            if (fork) p.arrow({{at, from - 8}, {at + way * width / 4, from - 8}, {at + way * width / 4, bottom}});
        p.box(at - width / 2, top, width, height, css);
        p.text(at, top + 16, "t", 12, title);
        if (heads && c.kv_lora_rank) draw_latent(at, top + 24);
        else if (heads) draw_heads(at, top + 25, width - 30);
        for (size_t i = 0; i < lines.size(); i++)
            p.text(at, top + 31 + art + 13 * static_cast<int>(i), "f", 10, lines[i]);
        return top;
    }
    // A square for each query head, above the heads of keys and values that they share.
    void draw_heads(int at, int top, int width)
    {
        const int n = static_cast<int>(c.n_heads), groups = static_cast<int>(c.n_kv_heads),
                  size = std::min(7, std::max(2, width / n - 1));
        const double step = std::min(static_cast<double>(width) / n, size + 3.0),
                     start = at - (step * (n - 1) + size) / 2;
        p.squares(start, top, n, step, size, "q");
        p.squares(start + step * (n / groups - 1) / 2, top + size + 3, groups, step * (n / groups), size, "k");
    }
    // MLA: x squeezed into the latent that the cache keeps, and widened to the heads again.
    void draw_latent(int at, int top)
    {
        p.raw(format("<path d=\"M%d %dl44 5v8l-44 5z\" class=\"q\"/><path d=\"M%d %dv18l-44 -5v-8z\" class=\"q\"/>\n",
                     at - 68, top, at + 68, top));
        p.box(at - 24, top + 2, 48, 14, "latent", 2);
        p.text(at, top + 12, "w", 9, std::to_string(c.kv_lora_rank));
    }
    void plus(int length = 18)
    {
        p.arrow({{x, y}, {x, y - length}});
        y -= length + Picture::plus_radius;
        p.plus(x, y);
    }
    void add(const char* css, const std::string& title, const std::string& fact)
    {
        plus(26);
        const int w = 112, from = x + side * 44, left = side > 0 ? from : from - w;
        p.box(left, y - 19, w, 38, css);
        p.text(left + w / 2, y - 3, "t", 11, title);
        p.text(left + w / 2, y + 11, "f", 10, fact);
        p.arrow({{from, y}, {x + side * Picture::plus_radius, y}});
        y -= Picture::plus_radius;
    }
    void sinusoids()                                           // the circle with a wave of the first paper
    {
        plus();
        const int at = x + side * 62;
        p.arrow({{at, y}, {x + side * Picture::plus_radius, y}});
        p.raw(format("<circle cx=\"%d\" cy=\"%d\" r=\"13\" class=\"o\"/>", at, y));
        p.raw(format("<path d=\"M%d %dq5 -14 10 0t10 0\" class=\"l\"/>\n", at - 10, y));
        p.text(at + side * 20, y - 1, "f", 11, "positions:", -side);
        p.text(at + side * 20, y + 12, "f", 11, "sinusoids", -side);
        y -= Picture::plus_radius;
    }

    // ---- Blocks ----

    void panel(const BlockKind& k)
    {
        const int bottom = y - gap;
        rise(gap);
        if (parallel(c))
            both(k);
        else
            for (const SubLayer& sub : k.sub_layers) sub_layer(k, sub);
        rise(10);
        const int at = x + label * (reach() + 10), middle = (y + bottom) / 2;
        p.text(at, middle + 6, "t", 19, std::to_string(k.n_layers) + "\xc3\x97", -label);
        if (k.n_layers != c.n_layers) p.text(at, middle + 22, "n", 10, ranges_text(k), -label);
        else if (k.one_set && k.n_layers > 1) p.text(at, middle + 22, "n", 10, "one set of weights", -label);
        p.panel(x - reach(), y, 2 * reach(), bottom - y);
    }
    int body(const BlockKind& k, const SubLayer& sub, int at, int from, int width)
    {
        std::string title = sub.title;
        title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
        if (sub.name == "ffn" && k.has("router")) return experts(k, sub, title, at, from, width);
        return stage_at(at, from, sub.name.c_str(), title, sub.facts, width, sub.name == "attn");
    }
    void sub_layer(const BlockKind& k, const SubLayer& sub)
    {
        rise(12);
        const int split = y;
        if (sub.pre) norm();
        y = body(k, sub, x, y, body_width);
        if (sub.name == "cross") memory.push_back({x - body_width / 2, y + 20});
        if (sub.post) norm();
        sum(split);
        if (sub.out) norm();
    }
    void sum(int split)                                        // the residual line around what was drawn since `split`
    {
        plus();
        const int far = x + side * residual();
        p.arrow({{x, split}, {far, split}, {far, y}, {x + side * Picture::plus_radius, y}});
        y -= Picture::plus_radius;
    }
    void both(const BlockKind& k)                              // of a parallel block: x + (attention + feed-forward)
    {
        rise(12);
        const int split = y;
        if (k.one_norm) norm();
        rise(12);
        const int fork = y;
        std::vector<Point> ends;
        for (const SubLayer& sub : k.sub_layers) {
            const int at = x + (ends.empty() ? -1 : 1) * (twin_width / 2 + 8);
            int to = fork - 10;
            p.line({{x, fork}, {at, fork}, {at, to}}, "l");
            if (sub.pre && !k.one_norm) to = norm_at(at, to);
            to = body(k, sub, at, to, twin_width);
            if (sub.post) to = norm_at(at, to);
            ends.push_back({at, to});
        }
        y = std::min(ends[0].y, ends[1].y) - 26;
        for (const Point& end : ends) p.arrow({end, {end.x, y}, {x + sign(end.x - x) * Picture::plus_radius, y}});
        p.plus(x, y);
        y -= Picture::plus_radius;
        sum(split);
    }
    // Several small boxes with a router below and their weighted sum above.
    int experts(const BlockKind& k, const SubLayer& sub, const std::string& title, int at, int from, int width)
    {
        const bool shared = k.has("shared_up");
        const int bottom = from - gap, row = bottom - 98, h = 30, sum_at = row - 30,
                  top = sum_at - Picture::plus_radius - gap;
        p.box(at - width / 2, top - 6, width, bottom - top + 6, "inner");
        p.line({{at, from}, {at, bottom}}, "l");
        // The first experts and the last; two of them as chosen ones.
        const uint32_t n = c.n_experts, shown = std::min(n, 4u), chosen = std::min(c.n_experts_active, 2u);
        const int w = 30, space = 7, dots = n > 4 ? 20 : 0, own = shared ? 48 + 12 : 0, router_top = bottom - 14 - 24;
        int left = at - (static_cast<int>(shown) * (w + space) - space + dots + own) / 2 + own;
        if (shared) {
            const int centre = left - own + 24;
            p.arrow({{at, bottom - 5}, {centre, bottom - 5}, {centre, row + h}});
            p.box(centre - 24, row, 48, h, "ffn");
            p.text(centre, row + 19, "f", 10, "shared");
            p.arrow({{centre, row}, {centre, sum_at}, {at - Picture::plus_radius, sum_at}});
        }
        p.arrow({{at, bottom}, {at, bottom - 14}});
        for (uint32_t i = 0; i < shown; i++) {
            if (i + 1 == shown && dots) {
                p.text(left + dots / 2 - space / 2, row + 19, "t", 12, "...");
                left += dots;
            }
            const bool on = n < 3 ? i < chosen : i == 1 || (i == 2 && chosen > 1);
            const int centre = left + w / 2, aside = (centre - at) / 4;
            const char* const css = on ? "a" : "d";
            p.line({{at + aside, router_top}, {centre, row + h}}, css);
            const int near = std::max(-7, std::min(aside, 7)); // where the plus circle is met
            p.line({{centre, row}, {at + near, sum_at + 9 - std::abs(near) / 2}}, css);
            p.box(left, row, w, h, on ? "ffn" : "off");
            p.text(centre, row + 19, "f", 10, std::to_string(i + 1 == shown ? n : i + 1));
            left += w + space;
        }
        p.box(at - 62, router_top, 124, 24, "router");
        p.text(at, router_top + 16, "t", 11,
               format("Router, %s", c.router == transformer::Router::sigmoid ? "sigmoid" : "softmax"));
        p.plus(at, sum_at);
        return stage_at(at, top + gap, "ffn", title, sub.facts, width, false);
    }
};

inline std::string block_svg(const Source& s, const Counts& counts)
{
    Picture p;
    const bool two = s.encoder.n_layers != 0;
    Column main(p, s, 0, 1, s.main.flags & transformer::flag_cross ? 1 : -1), encoder(p, s, 1, -1, -1);
    main.input();
    main.blocks();
    const int lane = -main.reach() - 45;
    if (two) {
        encoder.x = 2 * lane + main.reach() - encoder.reach();
        encoder.input();
        encoder.blocks();
    }
    // The encoder's output, into every cross attention.
    for (const Point& to : main.memory) {
        const int over = encoder.y - 24;
        std::vector<Point> way = {{lane, to.y}, to};
        if (two) way.insert(way.begin(), {{encoder.x, encoder.y}, {encoder.x, over}, {lane, over}});
        p.arrow(way);
        p.text(lane + 8, to.y - 6, "f", 10, "k, v", -1);
        if (!two) p.text(lane - 4, to.y + 4, "f", 12, "encoder's output", 1);
    }
    main.output();
    const std::string name = s.kind.rfind("Hugging Face ", 0) == 0 ? s.kind.substr(13) : s.kind,
                      size = digits(counts.parameters) + " parameters",
                      active = ", of which a token uses " + digits(counts.active), d = ", d = " + digits(s.main.dim);
    const int middle = two ? (p.left() + p.right()) / 2 : main.x, top = p.top() - 16;
    p.text(middle, top - 18, "t", 16, name);
    p.text(middle, top, "n", 11, size + (counts.active == counts.parameters ? "" : active) + d);
    return p.svg(name + ": " + size);
}

// ---- Attention weights ----------------------------------------------------------------------------------------------

// Each head a square of cells, the darker the larger its weight; rows are queries, columns keys.
inline std::string attention_svg(const std::vector<float>& values, uint32_t heads, uint32_t t, uint32_t s,
                                 const std::vector<std::string>& labels)
{
    const uint32_t cell = 12, across = std::min(heads, 4u), margin = labels.empty() ? 20 : 100;
    const uint32_t width = margin + s * cell + 20, height = t * cell + 40;
    const auto box = [](uint32_t x, uint32_t y, uint32_t w, uint32_t h, const std::string& style) {
        return format("<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" %s/>\n", x, y, w, h, style.c_str());
    };
    std::string out = format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
                             "font-family=\"monospace\" font-size=\"10\">\n",
                             width * across, height * ((heads + across - 1) / across));
    out += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    for (uint32_t h = 0; h < heads; h++) {
        out += format("<g transform=\"translate(%u,%u)\">\n<text x=\"%u\" y=\"14\">head %u</text>\n",
                      h % across * width, h / across * height, margin, h + 1);
        out += box(margin, 20, s * cell, t * cell, "fill=\"none\" stroke=\"#999\"");
        for (uint32_t i = 0; i < labels.size(); i++)
            out += format("<text x=\"%u\" y=\"%u\" text-anchor=\"end\">%s</text>\n", margin - 4, 30 + i * cell,
                          xml_text(labels[i]).c_str());
        for (uint32_t i = 0; i < t * s; i++) {
            const double w = static_cast<double>(values[size_t{h} * t * s + i]);
            if (w >= 0.005)
                out += box(margin + i % s * cell, 20 + i / s * cell, cell, cell,
                           format("fill=\"#036\" fill-opacity=\"%.2f\"", w));
        }
        out += "</g>\n";
    }
    return out + "</svg>\n";
}

}  // namespace weights
#endif
