package archtest

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Contributors run "make test" before every push. The race detector, planted faults and long forms take longer than
// they would wait, and are in "make test-all". Both show their stages, which have the same names in .ci/run.
func TestStagesOfMakeTest(t *testing.T) {
	root := moduleDir(t)
	for target, want := range map[string][]string{
		"test":     {"compile", "test", "postgres"},
		"test-all": {"compile", "test", "postgres", "race", "planted", "long"},
	} {
		cmd := exec.Command("make", "-n", target)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("make -n %s: %v", target, err)
		}
		var got []string
		for _, m := range regexp.MustCompile(`(?m)^\.ci/stage (\S+)`).FindAllSubmatch(out, -1) {
			got = append(got, string(m[1]))
		}
		if !slices.Equal(got, want) {
			t.Errorf("stages of make %s = %v, want %v", target, got, want)
		}
	}
	run, err := os.ReadFile(filepath.Join(root, ".ci", "run"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^stage test \d+ make test( |$)`).Match(run) {
		t.Error(".ci/run has no stage that runs make test")
	}
}

// Tests with a mark of internal/testkit/stage are left out of a stage by the Makefile, and none skips itself.
func TestMarkedTestsAreLeftOut(t *testing.T) {
	root := moduleDir(t)
	for target, want := range map[string]string{
		"NoStore": "TestStrictAgreesWithTokens", "NoRace": "TestEveryInvariantCanBeBroken",
		"Long": "TestChaos",
	} {
		out, err := exec.Command(filepath.Join(root, ".ci", "left-out"), target).Output()
		if err != nil || !regexp.MustCompile(`[(|]`+want+`[)|]`).Match(out) {
			t.Errorf("left-out %s = %s, %v, want a pattern with %s", target, out, err, want)
		}
	}
	if exec.Command(filepath.Join(root, ".ci", "left-out"), "NoSuchMark").Run() == nil {
		t.Error("a mark that no test has is accepted")
	}
}

func TestStageShowsItsTimeAndItsFailure(t *testing.T) {
	root := moduleDir(t)
	for command, want := range map[string]string{"true": "──── tried: ok, 0 s", "false": "──── tried: FAILED, 0 s"} {
		cmd := exec.Command(filepath.Join(root, ".ci", "stage"), "tried", command)
		out, err := cmd.Output()
		got := regexp.MustCompile(`\d+ s\n$`).ReplaceAllString(string(out), "0 s\n")
		if !strings.Contains(got, "──── tried: "+command+"\n") || !strings.HasSuffix(got, want+"\n") ||
			(err == nil) != (command == "true") {
			t.Errorf("stage with the command %s: %q, error %v, want %q in the end", command, out, err, want)
		}
	}
}

// "make check" vets packages with the tag plant that have files for it. A package that gets such a file belongs there.
func TestMakefileNamesPackagesWithPlantedFiles(t *testing.T) {
	root := moduleDir(t)
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^PLANTED := (.*)$`).FindSubmatch(text)
	if list == nil {
		t.Fatal("the Makefile has no PLANTED := …: this test looks at nothing")
	}
	want := strings.Fields(string(list[1]))
	constraint := regexp.MustCompile(`(?m)^//go:build .*\bplant\b`)
	found := make(map[string]bool)
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		source, err := os.ReadFile(path)
		if constraint.Match(source) {
			dir, _ := filepath.Rel(root, filepath.Dir(path))
			found["./"+filepath.ToSlash(dir)] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("packages with files for the tag plant = %v, and the Makefile names %v; want the same", got, want)
	}
}
