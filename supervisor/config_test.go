package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/perdure/perdure/supervisor"
)

const sample = `
system = "You help."
max_turns = 20
window = 64_000
worker_wait = "30s"

[[model]]
base_url = "https://openrouter.ai/api/v1"
model = "openai/gpt-5"
key_env = "TEST_SUPERVISOR_KEY"
input_price = 1.25
output_price = 10

[[model]]
base_url = "http://127.0.0.1:11434/v1"
model = "llama3.2"
first_token = "45s"

[budget]
tokens = 200_000
cost = 0.5

[worker]
system = "You work."
budget = { tokens = 50_000 }

[shell]
allow = [["df", "-h"], ["systemctl", "status", "*"]]
approve = "never"

[[tool]]
name = "weather"
description = "the weather of a city"
kind = "weather"
repeatable = true
parameters = { type = "object", properties = { city = { type = "string" } } }
`

func TestConfigBecomesOptions(t *testing.T) {
	t.Setenv("TEST_SUPERVISOR_KEY", "sk-hush")
	path := filepath.Join(t.TempDir(), "supervisor.toml")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := supervisor.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	opt, err := c.Options()
	if err != nil {
		t.Fatal(err)
	}
	if opt.MaxTurns != 20 || opt.WorkerWait.Seconds() != 30 || opt.Budget.Cost != 0.5 ||
		opt.WorkerBudget.Tokens != 50_000 {
		t.Errorf("options = %+v, want those of the file", opt)
	}
	var names []string
	for _, tool := range opt.Tools {
		names = append(names, tool.Spec().Name)
	}
	if got := strings.Join(names, " "); got != "shell weather" || len(opt.WorkerTools) != 2 {
		t.Errorf("tools = %s, want shell weather, for workers too", got)
	}
	if _, err := supervisor.New(opt); err != nil {
		t.Error(err)
	}
	if dump := fmt.Sprintf("%+v", *c); strings.Contains(dump, "sk-hush") {
		t.Errorf("the configuration prints its key: %s", dump)
	}
}

func TestConfigErrorsNameTheSetting(t *testing.T) {
	const endpoint = "[[model]]\nbase_url = \"http://m/v1\"\nmodel = \"m\"\n"
	for name, c := range map[string]struct{ text, want string }{
		"syntax":       {"system = \"x\"\nmax_turns = = 3", "line 2"},
		"unknown":      {"max_turn = 3\n" + endpoint, "max_turn: there is no such setting"},
		"unknown deep": {endpoint + "[worker]\nbudgets = {}", "worker.budgets"},
		"key in file":  {endpoint + `key = "sk-hush"`, "use key_env or key_file"},
		"two keys":     {endpoint + "key_env = \"A\"\nkey_file = \"b\"", "model[0]: key_env and key_file"},
		"type":         {"max_turns = \"many\"\n" + endpoint, "max_turns"},
		"duration":     {"worker_wait = \"soon\"\n" + endpoint, "worker_wait"},
		"negative":     {"max_turns = -1\n" + endpoint, "max_turns: is negative"},
		"no model":     {"max_turns = 1", "models: at least one"},
		"address":      {"[[model]]\nbase_url = \"m\"\nmodel = \"m\"", "models[0]: the base URL"},
		"approve":      {endpoint + "[shell]\napprove = \"maybe\"", "approve"},
		"names only": {endpoint + "[shell]\nallow = [\"df\"]",
			`write ["df"] for it without arguments, ["df", "-h"]`},
		"no program":  {endpoint + "[shell]\nallow = [[]]", "allow[0]"},
		"any program": {endpoint + "[shell]\nallow = [[\"*\"]]", "allow[0]"},
		"no list":     {endpoint + "[shell]\nallow = \"df\"", "list of commands"},
		"approvers":   {endpoint + "[shell]\napprovers = \"me\"", "neither tenant nor platform"},
		"mcp approvers": {endpoint + "[[mcp]]\nname=\"a\"\ncommand=\"a\"\napprovers = \"me\"",
			"mcp[0]: invalid: approvers"},
		"exec approvers": {endpoint + "[[exec]]\nname=\"a\"\ncommand=[\"a\"]\napprovers=\"me\"",
			"exec[0]: invalid: approvers"},
		"tool's name":    {endpoint + "[[tool]]\nname = \"a b\"\nkind = \"k\"", `"a b"`},
		"own tool again": {endpoint + "[[tool]]\nname = \"ask_human\"\nkind = \"k\"", "two tools"},
		"tool's kind":    {endpoint + "[[tool]]\nname = \"a\"", "tool[0]"},
		"mcp twice":      {endpoint + strings.Repeat("[[mcp]]\nname=\"a\"\ncommand=\"a\"\n", 2), "mcp[1]"},
		"mcp neither":    {endpoint + "[[mcp]]\nname=\"a\"", "mcp[0]: command and url"},
		"mcp key":        {endpoint + "[[mcp]]\nname=\"a\"\ncommand=\"a\"\nkey_env=\"K\"", "pass_env"},
		"mcp unknown":    {endpoint + "[[mcp]]\nname=\"a\"\ncommand=\"a\"\ntools=[]", "mcp.tools"},
		"mcp own tool":   {endpoint + "[[mcp]]\nname=\"spawn\"\ncommand=\"a\"", "so does the tool spawn_worker"},
		"mcp header": {endpoint + "[[mcp]]\nname=\"a\"\nurl=\"http://a\"\nheaders={authorization=\"sk-hush\"}",
			"use key_env or key_file"},
		"exec nothing": {endpoint + "[[exec]]\nname=\"a\"", "exec[0]: command"},
		"exec program": {endpoint + "[[exec]]\nname=\"a\"\ncommand=[\"{p}\"]", "the program can't be a parameter"},
		"exec dir":     {endpoint + "[[exec]]\nname=\"a\"\ncommand=[\"a\"]\ndir=\"b\"", "exec[0]: dir"},
		"exec approve": {endpoint + "[[exec]]\nname=\"a\"\ncommand=[\"a\"]\napprove=\"b\"", "exec[0]: approve"},
		"small window": {"window = 10\n" + endpoint, "window"},
		"large result": {"max_result = 99999999\n" + endpoint, "max_result"},
	} {
		_, err := supervisor.ParseConfig([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error = %v, want one with %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "sk-hush") {
			t.Errorf("%s: the error has the key in it: %v", name, err)
		}
	}
}

func TestConfigKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "supervisor.toml")
	text := "[[model]]\nbase_url = \"http://m/v1\"\nmodel = \"m\"\nkey_file = \"key\"\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := supervisor.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Options(); err == nil || !strings.Contains(err.Error(), "model[0]: key_file") {
		t.Errorf("without the file: error = %v, want one about key_file", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("sk-hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Options(); err != nil {
		t.Errorf("with the file: error = %v, want none", err)
	}
}

// The file of docs/supervisor.md is valid, and has every setting.
func TestDocumentedConfig(t *testing.T) {
	page, err := os.ReadFile("../docs/supervisor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```toml supervisor\n")
	text, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("docs/supervisor.md has no file")
	}
	c, err := supervisor.ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	checkTags(t, text, reflect.TypeOf(*c))
}

// checkTags looks for the names of all settings of a type.
func checkTags(t *testing.T, text string, typ reflect.Type) {
	t.Helper()
	for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	for i := 0; typ.Kind() == reflect.Struct && i < typ.NumField(); i++ {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		if name != "" && !strings.Contains(text, name) {
			t.Errorf("docs/supervisor.md does not have the setting %s", name)
		}
		checkTags(t, text, f.Type)
	}
}
