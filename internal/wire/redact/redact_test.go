package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

const canary = `sk-Canary/"7f+é\!2`

func set(t testing.TB, secrets ...string) *Set {
	t.Helper()
	s, err := New(secrets)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// inForms returns the canary in all its forms, within other text.
func inForms() map[string]string {
	quoted, _ := json.Marshal(canary)
	twice, _ := json.Marshal(string(quoted))
	out := map[string]string{
		"plain": "key " + canary + " end", "json": string(quoted), "json in json": string(twice),
		"query": "a=" + url.QueryEscape(canary) + "&b", "path": "/x/" + url.PathEscape(canary) + "/y",
		"lower escapes": strings.ToLower(url.QueryEscape("é")) +
			strings.NewReplacer("%2F", "%2f", "%C3%A9", "%c3%a9").Replace(url.QueryEscape(canary)),
		"hex": hex.EncodeToString([]byte("ab" + canary)),
		"HEX": strings.ToUpper(hex.EncodeToString([]byte(canary + "z"))),
	}
	for name, enc := range map[string]*base64.Encoding{
		"std": base64.StdEncoding, "raw": base64.RawStdEncoding,
		"url": base64.URLEncoding, "rawurl": base64.RawURLEncoding,
	} {
		for _, before := range []string{"", "x", "xy", "xyz", "user:"} {
			for _, after := range []string{"", "1", "12", "123"} {
				out["base64 "+name+" "+before+"|"+after] = enc.EncodeToString([]byte(before + canary + after))
			}
		}
	}
	return out
}

func TestSecretIsFoundInEveryForm(t *testing.T) {
	s := set(t, canary)
	for name, text := range inForms() {
		if name == "lower escapes" {
			text = strings.NewReplacer("%2B", "%2b", "%22", "%22", "%5C", "%5c", "%21", "%21").Replace(text)
		}
		if got := s.String(text); !strings.Contains(got, Mark) {
			t.Errorf("%s: String(%q) = %q, want a mark", name, text, got)
		}
	}
}

func TestTextWithoutSecretIsUnchanged(t *testing.T) {
	s := set(t, canary, "another-secret")
	for _, text := range []string{"", "s", "sk-Canar", "sk-", "plain text", `{"a": 1.50, "b":"\u0041\n"}`, "[redacted]",
		"another-secre t"} {
		if got := s.String(text); got != text {
			t.Errorf("String(%q) = %q, want it unchanged", text, got)
		}
		if got := s.JSON([]byte(text)); string(got) != text {
			t.Errorf("JSON(%q) = %q, want it unchanged", text, got)
		}
		if got := s.Whole(text); got != text && text != "sk-Canar" {
			t.Errorf("Whole(%q) = %q, want it unchanged", text, got)
		}
	}
	var none *Set
	if none.String(canary) != canary || none.Has(canary) || none.Whole(canary) != canary ||
		string(none.JSON([]byte(`"x"`))) != `"x"` {
		t.Error("a nil set changes or finds something")
	}
}

func TestJSONStaysValidHoweverItIsEscaped(t *testing.T) {
	s := set(t, canary, "12345678", `","b":"x`)
	for in, want := range map[string]string{
		`{"a":"` + `\u0073k-Canary\/\u00227f+\u00e9\\!2` + `"}`: `{"a":"[redacted]"}`,
		`{"n":12345678,"m":[912345678.5,1]}`:                    `{"n":"[redacted]","m":["[redacted]",1]}`,
		`{"a":"1","b":"x"}`:                                     `{"a":"1","b":"x"}`,
		`{"12345678":"12345678\n"}`:                             `{"[redacted]":"[redacted]\n"}`,
		`"x 12345678 <y>"`:                                      `"x [redacted] <y>"`,
	} {
		got := s.JSON([]byte(in))
		if string(got) != want || !json.Valid(got) {
			t.Errorf("JSON(%s) = %s, want %s", in, got, want)
		}
	}
	if got := s.Text(`{"a":"12345678"`); got != `{"a":"[redacted]"` {
		t.Errorf("Text of invalid JSON = %s, want it redacted as text", got)
	}
}

func TestTwoWholeTextsTogetherHaveNoSecret(t *testing.T) {
	s := set(t, canary)
	for i := 1; i < len(canary); i++ {
		if got := s.Whole("x"+canary[:i]) + s.Whole(canary[i:]+"y"); strings.Contains(got, canary) {
			t.Errorf("cut at %d: %q contains the secret", i, got)
		}
	}
}

func TestPossibleBeginningOfASecretIsHeldBack(t *testing.T) {
	s := set(t, canary, "sk-Can-other")
	for cut := 1; cut < 7; cut++ {
		var got strings.Builder
		var held Tail
		for text := "say " + canary + " and sk-Can't, sk"; text != ""; {
			piece := text[:min(cut, len(text))]
			text = text[len(piece):]
			var shown string
			shown, held = s.Hold(held, piece)
			got.WriteString(shown)
			for n := 4; n < len(canary); n++ {
				if strings.Contains(string(held), canary[:n]) {
					t.Fatalf("the tail %q contains text of the secret", held)
				}
			}
		}
		end, _ := s.Release(held)
		got.WriteString(end)
		// Up to two bytes of a secret may have been shown at the end of a piece.
		const want = "say [redacted] and sk-Can't, sk"
		if strings.NewReplacer("say sk[", "say [", "say s[", "say [").Replace(got.String()) != want {
			t.Errorf("in pieces of %d: %q, want %q", cut, got.String(), want)
		}
	}
}

// A stream can be released within a secret and continue later. Less than half of the secret is
// shown.
func TestReleaseWithinASecretShowsLessThanHalf(t *testing.T) {
	s := set(t, canary)
	for i := 1; i <= len(canary); i++ {
		out, held := s.Hold("", "key is "+canary[:i])
		end, left := s.Release(held)
		shown := out + end
		switch {
		case 2*i < len(canary):
			if shown != "key is "+canary[:i] {
				t.Errorf("released after %d bytes: %q, want them shown", i, shown)
			}
		case shown != "key is "+Mark:
			t.Errorf("released after %d bytes: %q, want a mark", i, shown)
		}
		if s.Hides(left) || strings.Contains(string(left), canary[:3]) {
			t.Errorf("released after %d bytes: the tail %q still hides or shows text", i, left)
		}
		rest, held := s.Hold(left, canary[i:]+" more")
		last, _ := s.Release(held)
		if want := Mark + " more"; i < len(canary) && rest+last != want {
			t.Errorf("after %d bytes the rest is %q, want %q", i, rest+last, want)
		}
		for at := range canary[i:] { // byte by byte
			out, left = s.Hold(left, canary[i+at:i+at+1])
			shown += out
		}
		clean(t, s, "byte by byte", shown)
		if other, _ := s.Hold(held, "other"); !strings.HasSuffix(other, "other") {
			t.Errorf("harmless text after %d bytes becomes %q, want it shown", i, other)
		}
	}
}

func TestTailOfOtherSecretsBecomesAMark(t *testing.T) {
	_, held := set(t, canary).Hold("", "some sk-Cana")
	if got, left := set(t, "another-secret").Release(held); got != Mark || left != "" {
		t.Errorf("Release of a tail of another set = %q, %q, want a mark", got, left)
	}
	var none *Set
	if got, _ := none.Release(held); got != Mark {
		t.Errorf("Release without secrets = %q, want a mark", got)
	}
	if got, left := none.Hold(held, " and more"); got != Mark+" and more" || left != "" {
		t.Errorf("Hold without secrets = %q, %q, want a mark and the text", got, left)
	}
	for _, bad := range []Tail{"x", "...", "ffff.0.3.0", held + "9", "-1.-1.-1.-1", held + ".1"} {
		if got, _ := set(t, canary).Release(bad); got != Mark {
			t.Errorf("Release(%q) = %q, want a mark", bad, got)
		}
	}
}

func TestReaderRedactsAcrossReads(t *testing.T) {
	s := set(t, canary)
	text := strings.Repeat("some text, ", 10000) + canary + " and " + canary[:5]
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text),
		"bytes": iotest.OneByteReader(strings.NewReader(text)),
		"half":  iotest.HalfReader(strings.NewReader(text)),
	} {
		got, err := io.ReadAll(s.Reader(r))
		if want := strings.ReplaceAll(text, canary, Mark); err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v, want %d with a mark", name, len(got), err, len(want))
		}
	}
	broken := errors.New("broken")
	if _, err := io.ReadAll(s.Reader(iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("error of the underlying reader = %v, want %v", err, broken)
	}
}

func TestLogLinesAreRedacted(t *testing.T) {
	s := set(t, canary)
	var out bytes.Buffer
	log := s.Logger(slog.New(slog.NewJSONHandler(&out, nil)))
	log.With("who", canary).WithGroup("g").Error("failed: "+canary, "error", errors.New("with "+canary),
		"in", slog.GroupValue(slog.String("a", canary)), "b", []byte("x"), "v", struct{ Key string }{canary}, "n", 1)
	if got := out.String(); s.Has(got) || strings.Count(got, Mark) != 5 || !strings.Contains(got, `"n":1`) {
		t.Errorf("log line: %s, want 5 marks and no secret", got)
	}
}

func TestLoadReadsSecretsFromTheirSources(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		f, err := os.CreateTemp(dir, "")
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		return "file:" + f.Name()
	}
	t.Setenv("SOME_SECRET", canary)
	t.Setenv("SHORT_SECRET", "1234567")
	t.Setenv("NO_SECRET", "")
	pem := file("-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nab==\n-----END KEY-----\n")
	s, err := Load([]string{"env:SOME_SECRET", file("one-secret\n\n two-secret \n"), pem})
	if err != nil {
		t.Errorf("Load of good sources: %v", err)
	}
	for _, secret := range []string{canary, "two-secret", "one-secret", "MIIEvQIBADANBgkq"} {
		if !s.Has(secret) {
			t.Errorf("the loaded set does not have %q", secret)
		}
	}
	if s.Has("-----BEGIN KEY-----") {
		t.Error("the BEGIN line of a PEM key is a secret, want it skipped")
	}
	for source, want := range map[string]string{
		"env:SHORT_SECRET":                     "shorter than 8",
		"env:NO_SECRET":                        "is empty",
		"env:MISSING_SECRET":                   "not set",
		"file:" + filepath.Join(dir, "none"):   "no such file",
		"file:" + dir:                          "is no file",
		canary:                                 "env:NAME",
		"literal:abcdefghij":                   "env:NAME",
		"env:":                                 "env:NAME",
		"":                                     "env:NAME",
		file("long-enough\nshort"):             "line 2",
		file("xxxxxxxxxx"):                     "again and again",
		file("redacted"):                       "overlaps",
		file("abcdefgh\xff"):                   "UTF-8",
		file(strings.Repeat("abcdefgh", 1000)): "longer",
	} {
		_, err := Load([]string{source})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q) = %v, want an error with %q", source, err, want)
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("the error contains the secret: %v", err)
		}
	}
	if s, err := Load(nil); s != nil || err != nil {
		t.Errorf("Load without sources = %v, %v, want nil", s, err)
	}
}

// FuzzRedactor redacts a random secret in a random text, whole and in random pieces. The output
// must not contain the secret, and a text without it must stay unchanged.
func FuzzRedactor(f *testing.F) {
	f.Add("s3cret-value", "before ", " after", []byte{3, 1, 9})
	f.Add(canary, canary[:5], canary[5:], []byte{1})
	f.Add("password[", "x", "[redacted]", []byte{0, 0, 2})
	f.Add("ababababac", "abab", "abacab", []byte{2, 2})
	f.Add("]abcdefgh", "abcdefgh", "[redacted", []byte{7})
	f.Fuzz(func(t *testing.T, secret, before, after string, cuts []byte) {
		s, err := New([]string{secret})
		if err != nil || len(secret)+len(before)+len(after) > 1000 {
			return // not a valid secret, or too long to try all cuts
		}
		cuts = cuts[:min(len(cuts), 16)]
		plain := before + secret + after
		for form, text := range map[string]string{
			"plain": plain, "base64": base64.StdEncoding.EncodeToString([]byte(plain)),
			"hex": hex.EncodeToString([]byte(plain)), "url": url.QueryEscape(plain), "around": before + after,
		} {
			had := s.Has(text)
			whole := s.String(text)
			clean(t, s, form, whole)
			if again := s.String(whole); again != whole {
				t.Fatalf("%s: %q redacted again is %q", form, whole, again)
			}
			for stop := range len(cuts) + 2 { // the stream is released after this many pieces, and continues
				out, begun := inPieces(s, text, cuts, stop)
				clean(t, s, form+" in pieces", out)
				clean(t, s, form+" up to an end", begun)
				if i := s.tail(begun, true); i < len(begun) {
					t.Fatalf("%s: %q ends in half a secret: %q", form, text, begun)
				}
				changed := !strings.Contains(text, Mark[:1]) && out != text && s.tail(text, true) == len(text)
				if stop > len(cuts) && !had && (whole != text || changed) {
					t.Fatalf("%s: the harmless text %q became %q, and %q in pieces", form, text, whole, out)
				}
			}
			quoted, err := json.Marshal(map[string]string{"k": text})
			if err != nil {
				t.Fatal(err)
			}
			var back map[string]string
			if err := json.Unmarshal(s.JSON(quoted), &back); err != nil {
				t.Fatalf("%s: JSON is broken: %v", form, err)
			}
			clean(t, s, form+" in JSON", back["k"])
		}
	})
}

// inPieces streams a text in pieces, with a release after some of them. begun is the output up to
// there.
func inPieces(s *Set, text string, cuts []byte, stop int) (all, begun string) {
	var held Tail
	for i := range len(cuts) + 2 {
		var shown string
		if i == stop {
			shown, held = s.Release(held)
			all += shown
			begun = all
		}
		n := len(text)
		if i < len(cuts) {
			n = min(int(cuts[i]), n)
		}
		shown, held = s.Hold(held, text[:n])
		text = text[n:]
		all += shown
	}
	end, _ := s.Release(held)
	return all + end, begun
}

// clean checks that a text has no form of a secret.
func clean(t *testing.T, s *Set, form, text string) {
	t.Helper()
	for part := range strings.SplitSeq(text, Mark) {
		for _, f := range s.forms {
			if strings.Contains(part, f) {
				t.Fatalf("%s: %q contains the form %q", form, text, f)
			}
		}
	}
}

func BenchmarkTextWithoutSecrets(b *testing.B) {
	var secrets []string
	for i := range 20 {
		secrets = append(secrets, "sk-"+strings.Repeat(string(rune('a'+i)), 3)+"0123456789abcdefghij")
	}
	s, err := New(secrets)
	if err != nil {
		b.Fatal(err)
	}
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 1000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if s.Has(text) {
			b.Fatal("a harmless text has a secret")
		}
	}
}
