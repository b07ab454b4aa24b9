package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/browser"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// Text of an agent is shown as text, with any content and of any length: values as large as the server takes them,
// and an output of 5 MB in one line. No view of it freezes the page, and neither do the views beside it.
func TestDashboardShowsHostileTextAsText(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const bad = `<script>window.owned = 1</script><img src=x onerror="window.owned = 2"> [x](javascript:owned=3) ` +
		"\x1b[31mred\x1b[0m \x1b]0;title\x07 pay\u202etxt.exe\u202c \u200b"
	quoted, _ := json.Marshal(bad)
	room := perdure.MaxValue - len(quoted) - len(`{"text":""}`)
	long := bad + strings.Repeat("y", room)
	numbers := "[1234567890123456789" + strings.Repeat(",1", (perdure.MaxValue-21)/2) + "]"
	r := n.submit(obj{"kind": "hostile", "input": obj{"text": long}, "metadata": obj{"note": bad}})
	n.submit(obj{"kind": "neighbour"})
	var thread struct {
		ThreadID string `json:"thread_id"`
	}
	n.insist("POST", "/api/v1/threads", "", obj{"metadata": obj{"title": bad}}, &thread)
	said := "/api/v1/threads/" + thread.ThreadID + "/messages"
	n.insist("POST", said, "", obj{"role": "assistant", "content": bad}, nil)
	if status := n.insist("POST", said, "", obj{"role": "assistant", "content": long}, nil); status >= 300 {
		t.Fatalf("the largest message = %d, want it taken", status)
	}
	grant := n.poll("w", 1, true, "10s")[0]
	// 5 MB of output in one line without an end: in as many lines of the log as a process would need, and in the
	// five largest ones, which the log keeps apart.
	lines := []obj{{"type": "llm:delta", "data": obj{"text": bad}}, {"type": "x:note", "data": obj{"text": long}}}
	for range 4 {
		lines = append(lines, obj{"type": "x:output", "data": obj{"text": long}})
	}
	n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{{"commit_id": "large", "run_id": grant.RunID,
		"epoch": grant.Epoch, "events": lines}}}, nil)
	lines = nil
	for range 640 {
		lines = append(lines, obj{"type": "x:output", "data": obj{"text": long[len(long)-8000:]}})
	}
	attack := "window.owned = 4; //" + `<svg xmlns="http://www.w3.org/2000/svg"><script>` +
		`(parent ?? opener).owned = 5; fetch("/api/v1/keys")</script></svg>`
	files := []struct{ name, media, content string }{{"page.html", "text/html", attack},
		{"picture.svg", "image/svg+xml", attack}, {"code.js", "text/javascript", attack},
		{"large.txt", "text/plain", strings.Repeat(bad, 5<<20/len(bad))}}
	for _, f := range files {
		n.puts(grant, f.name, f.media, f.content)
	}
	commit := obj{"commit_id": "end", "run_id": grant.RunID, "epoch": grant.Epoch, "events": lines,
		"outcome": obj{"type": "complete", "result": json.RawMessage(numbers)}}
	if status := n.insist("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{commit}}, nil); status != 200 {
		t.Fatalf("a commit of the largest lines = %d, want 200", status)
	}

	d := openDashboard(t, n, "", "login="+n.key)
	d.sees("h1", "Home")
	markdownIsRead(t, d)
	d.goes("#/runs")
	d.sees("tbody", "neighbour")
	d.sees("tbody", "<script>window.owned")
	browser.Eval[bool](d.Page, `window.long = []; new PerformanceObserver(list => {
		for (const e of list.getEntries()) long.push(Math.round(e.duration)) }).observe({type: 'longtask'}); true`)
	for _, view := range []struct{ at, css, text string }{
		{"/runs/" + r.RunID + "?tab=data", ".json", "<script>window.owned"},
		{"/runs/" + r.RunID + "?tab=data", "button", "show all"},
		{"/runs/" + r.RunID + "?tab=data", ".json", "1234567890123456789"},
		{"/runs/" + grant.RunID + "?tab=data", "td a", "large.txt"},
		{"/runs/" + grant.RunID + "?form=lines", ".log-row", "U+202E"},
		{"/runs/" + grant.RunID + "?tab=output", ".term-line", "yyyy"},
		{"/threads/" + thread.ThreadID, ".message", "<script>window.owned"},
		{"/threads/" + thread.ThreadID, ".message", "U+202E"},
		{"/threads/" + thread.ThreadID, ".message button", "show all"},
		{"/runs", "tbody", "neighbour"},
	} {
		began := time.Now()
		d.goes("#" + view.at)
		d.sees(view.css, view.text)
		t.Logf("%s shows %q after %d ms; tasks longer than 50 ms: %v", view.at, view.text,
			time.Since(began).Milliseconds(), browser.Eval[[]float64](d.Page, "long.splice(0)"))
		if owned := browser.Eval[bool](d.Page, "window.owned !== undefined"); owned {
			t.Errorf("%s: a script of an agent was executed", view.at)
		}
		made := browser.Eval[int](d.Page, `document.querySelectorAll('main img, main script, '+
			'main a[href^="javascript"]').length`)
		if made != 0 {
			t.Errorf("%s: the text of an agent became %d elements, want none", view.at, made)
		}
		if chars := browser.Eval[int](d.Page, "document.body.textContent.length"); chars > 400_000 {
			t.Errorf("%s has %d characters, want the page to show a part of so long a text", view.at, chars)
		}
	}

	// Artifacts are saved, and neither shown nor executed: not by a click, not as a page, and not by a script, an
	// import, a frame or a picture that somebody got into the dashboard.
	d.goes("#/runs/" + grant.RunID + "?tab=data")
	for _, f := range files {
		d.sees("td a", f.name)
		browser.Eval[bool](d.Page, find("td a", f.name)+"[0].focus(), true")
		d.Press("\r") // without a person's key or click a page may save one file
		eventually.True(t, "the browser saves "+f.name, func() bool {
			return d.Downloaded(f.name, int64(len(f.content)))
		})
		browser.Eval[bool](d.Page, `(() => { const at = `+find("td a", f.name)+`[0].href; window.tried = [];
			const tries = (e, attribute) => { e[attribute] = at; document.body.append(e);
				e.onload = e.onerror = () => tried.push(e.tagName) };
			tries(document.createElement('script'), 'src');
			tries(Object.assign(document.createElement('script'), {type: 'module'}), 'src');
			tries(document.createElement('iframe'), 'src'); tries(document.createElement('object'), 'data');
			tries(document.createElement('img'), 'src');
			import(at).catch(() => {}).finally(() => tried.push('import')); return true })()`)
		d.until("the page has tried to load "+f.name, "tried.length >= 5")
		if owned := browser.Eval[any](d.Page, "window.owned ?? null"); owned != nil {
			t.Errorf("%s: script %v of an artifact was executed", f.name, owned)
		}
	}
	browser.Eval[bool](d.Page, "location.href = "+find("td a", "page.html")+"[0].href, true")
	d.goes("#/runs")
	d.sees("tbody", "neighbour")
	if at := browser.Eval[string](d.Page, "location.pathname"); at != "/ui/" {
		t.Errorf("the page that is shown after the artifacts is %s, want the dashboard", at)
	}
}

// markdownIsRead compares how texts of agents are shown with what their marks mean. Texts that are made to take long
// take as long as their length: a page that is stopped by one would not answer.
func markdownIsRead(t *testing.T, d *dashboard) {
	browser.Eval[bool](d.Page, `Promise.all([import('./lib.js'), import('./markdown.js')]).then(([l, m]) => {
		window.shownAs = text => { const e = document.createElement('div');
			l.render(l.html`+"`<${m.Markdown} text=${text} />`"+`, e); return e.firstChild.innerHTML } }), true`)
	d.until("the reader of Markdown is loaded", "Boolean(window.shownAs)")
	shown := func(text string) string {
		b, _ := json.Marshal(text)
		return browser.Eval[string](d.Page, "shownAs("+string(b)+")")
	}
	link := func(to, text string) string {
		return `<a href="` + to + `" target="_blank" rel="noopener noreferrer nofollow">` + text + `</a>`
	}
	for _, x := range []struct{ text, want string }{
		{"a **b** *c* ~~d~~ `e *f*`", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e *f*</code></p>"},
		{"***a*** **b *c* d**", "<p><em><strong>a</strong></em> <strong>b <em>c</em> d</strong></p>"},
		{"snake_case_name, 2 * 3 * 4, **open, `open", "<p>snake_case_name, 2 * 3 * 4, **open, `open</p>"},
		{"**Bold:** text\nnext \\*line\\*", "<p><strong>Bold:</strong> text<br>next *line*</p>"},
		{"# One #\n### Three\nTwo\n---\n***", "<h3>One</h3><p><strong>Three</strong></p><h3>Two</h3><hr>"},
		{"text\n- a\n- b\n  - c\n- [x] d\n\nend", "<p>text</p><ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li>" +
			"<li>☑ d</li></ul><p>end</p>"},
		{"3. a\n   b\n\n   c\n4. d", `<ol start="3"><li><p>a<br>b</p><p>c</p></li><li>d</li></ol>`},
		{"> a\n> - b\n\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>"},
		{"| a | b |\n|--|:-:|\n| 1 | x \\| y |\n| 2 |", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>" +
			"<tr><td>1</td><td>x | y</td></tr><tr><td>2</td><td></td></tr></tbody></table>"},
		{"[x](https://a.example/b \"t\") <https://c.example>", "<p>" + link("https://a.example/b", "x") + " " +
			link("https://c.example", "https://c.example") + "</p>"},
		{"(see https://a.example/x_(y)).", "<p>(see " + link("https://a.example/x_(y)", "https://a.example/x_(y)") +
			").</p>"},
		{"![p](https://a.example/i.png) [x](javascript:f())", "<p>" + link("https://a.example/i.png", "p") +
			" <span>x (javascript:f())</span></p>"},
		{"<b onclick=f()>x</b> &lt;y&gt; &amp;", "<p>&lt;b onclick=f()&gt;x&lt;/b&gt; &lt;y&gt; &amp;</p>"},
	} {
		if got := shown(x.text); got != x.want {
			t.Errorf("%q is shown as\n%s, want\n%s", x.text, got, x.want)
		}
	}
	if got := shown("```go\na := `b`\n\n  c\n```\nafter"); !strings.Contains(got, "a := `b`\n\n  c<") ||
		!strings.HasSuffix(got, "<p>after</p>") {
		t.Errorf("a block of code is shown as %s, want its lines as they are", got)
	}
	for _, part := range []string{"*a **b ", "a*b_", "[a](", "[](a \"", "~~a~~", "> ", "  - a\n", "_a*b~~c", "[*",
		"`a``b", "http://... ", "| ", "![", "<http://", "***a*** ", "&lt;", "\\", "-\n", "a|b\n-|-\n"} {
		long := strings.Repeat(part, 39_000/len(part))
		if got := shown(long); len(got) < 1000 {
			t.Errorf("%q many times is shown as %q, want all of it", part, got)
		}
	}
	shown("[](" + strings.Repeat(" ", 9000) + "\n```" + strings.Repeat(" ", 9000) + "`")
	shown(strings.Repeat("*a **b ", 2500) + strings.Repeat("c** d* ", 2500))
}
