package httpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/jsonschema"
)

// openAPI is the OpenAPI document, made once per process: all servers have the same routes, and tests
// open many servers. compactOpenAPI is a server's answer.
var (
	openAPI        = sync.OnceValues(func() ([]byte, error) { return describe(new(Server).table()) })
	compactOpenAPI = sync.OnceValues(func() ([]byte, error) {
		doc, err := openAPI()
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		err = json.Compact(&out, doc)
		return append(out.Bytes(), '\n'), err
	})
)

// describe makes the OpenAPI 3.1 document of the routes. The document has exactly the routes of the
// table.
func describe(routes []route) ([]byte, error) {
	c := &components{schemas: map[string]any{}, requestOnly: requestTypes(routes)}
	paths := map[string]map[string]any{}
	codes := make([]string, len(api.Codes))
	for i, c := range api.Codes {
		codes[i] = string(c.Code)
	}
	problem := schemaOf(reflect.TypeFor[api.Problem](), c)
	properties := c.schemas["Problem"].(map[string]any)["properties"].(map[string]any)
	properties["code"] = map[string]any{"type": "string", "enum": codes}
	for _, r := range routes {
		op := map[string]any{"summary": r.summary, "operationId": operationID(r), "responses": responses(r, c, problem)}
		if params := parameters(r); len(params) > 0 {
			op["parameters"] = params
		}
		if r.in != reflect.TypeFor[none]() {
			op["requestBody"] = map[string]any{"content": map[string]any{
				"application/json": map[string]any{"schema": schemaOf(r.in, c)}}}
		}
		if r.bytes {
			op["requestBody"] = map[string]any{"content": map[string]any{perdure.AnyContent: map[string]any{}}}
		}
		switch {
		case r.guard.open:
			op["security"] = []any{}
		case r.guard.platform && r.guard.scope != "":
			op["description"] = "Takes a key of the platform with the scope `" + string(r.guard.scope) + "`."
		case r.guard.platform:
			op["description"] = "Takes a key of the platform."
		default:
			op["description"] = "Takes a key with the scope `" + string(r.guard.scope) + "`."
		}
		if paths[r.pattern] == nil {
			paths[r.pattern] = map[string]any{}
		}
		paths[r.pattern][strings.ToLower(r.method)] = op
	}
	return json.MarshalIndent(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "Perdure", "version": "v1",
			"description": "A durable runtime for AI-agent runs. Timeouts stop waiting, not working."},
		"security": []any{map[string]any{"key": []any{}}},
		"paths":    paths,
		"components": map[string]any{"schemas": c.schemas,
			"securitySchemes": map[string]any{"key": map[string]any{"type": "http", "scheme": "bearer"}}},
	}, "", " ")
}

// notWord matches the parts of a path that an operation id can't have.
var notWord = regexp.MustCompile(`[^A-Za-z0-9]+`)

func operationID(r route) string {
	path := notWord.ReplaceAllString(strings.TrimPrefix(r.pattern, "/api"), "_")
	return strings.Trim(strings.ToLower(r.method)+"_"+path, "_")
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

func parameters(r route) (out []any) {
	for _, m := range inPath.FindAllStringSubmatch(r.pattern, -1) {
		out = append(out, map[string]any{"name": m[1], "in": "path", "required": true,
			"schema": map[string]any{"type": "string"}})
	}
	for _, q := range r.query {
		schema := queryBound(r, q).describe(map[string]any{"type": "string"})
		out = append(out, map[string]any{"name": q, "in": "query", "schema": schema})
	}
	if r.keyed {
		out = append(out, map[string]any{"name": "Idempotency-Key", "in": "header",
			"schema": map[string]any{"type": "string", "maxLength": maxKey}})
	}
	return out
}

func responses(r route, c *components, problem any) map[string]any {
	body := map[string]any{r.media: map[string]any{"schema": map[string]any{"type": "string"}}}
	if r.raw == nil {
		body = map[string]any{"application/json": map[string]any{"schema": schemaOf(r.out, c)}}
	}
	out := map[string]any{"default": map[string]any{"description": "A problem",
		"content": map[string]any{"application/problem+json": map[string]any{"schema": problem}}}}
	for _, status := range append([]int{r.usual()}, r.more...) {
		answer := map[string]any{"description": http.StatusText(status)}
		if status != http.StatusNoContent && status != http.StatusSwitchingProtocols {
			answer["content"] = body
			if r.streams && status == http.StatusOK {
				both := maps.Clone(body)
				both[api.MediaStream] = map[string]any{"schema": map[string]any{"type": "string"}}
				answer["content"] = both
			}
		}
		out[fmt.Sprint(status)] = answer
	}
	return out
}

// components has the schemas of named types.
type components struct {
	schemas map[string]any
	// requestOnly has the types that bodies have and answers don't.
	requestOnly map[reflect.Type]bool
	made        *jsonschema.Generator
}

// requestTypes returns the types that bodies have and answers don't.
func requestTypes(routes []route) map[reflect.Type]bool {
	in, out := make(map[reflect.Type]bool), make(map[reflect.Type]bool)
	var visit func(t reflect.Type, seen map[reflect.Type]bool)
	visit = func(t reflect.Type, seen map[reflect.Type]bool) {
		switch {
		case isRaw(t) || seen[t]:
		case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
			visit(t.Elem(), seen)
		case t.Kind() == reflect.Struct:
			seen[t] = true
			for _, f := range fieldsOf(t) {
				visit(f, seen)
			}
		}
	}
	for _, r := range routes {
		visit(r.in, in)
		visit(r.out, out)
	}
	for t := range out {
		delete(in, t)
	}
	return in
}

// schemaOf returns the JSON schema of a type. Named structs become components.
func schemaOf(t reflect.Type, c *components) any { return c.generator().Of(t) }

// generator makes the schemas of the components. Types whose values have their own bounds or parsers
// are known to it.
func (c *components) generator() *jsonschema.Generator {
	if c.made != nil {
		return c.made
	}
	c.made = &jsonschema.Generator{Prefix: "#/components/schemas/", Defs: c.schemas, Closed: true, Name: schemaName,
		Known: func(t reflect.Type) jsonschema.Schema {
			switch {
			case t == reflect.TypeFor[perdure.Instant]():
				return jsonschema.Schema{"type": "string", "format": "date-time"}
			case t == reflect.TypeFor[perdure.Duration]():
				return jsonschema.Schema{"type": "string", "pattern": durationPattern,
					"examples": []any{"30s", "1h15m"}}
			case isRaw(t):
				return jsonschema.Schema{"description": "any JSON value"}
			case t.Kind() == reflect.String:
				return bound{enum: enums[t]}.describe(jsonschema.Schema{"type": "string"})
			case t.Kind() == reflect.Struct: // also those that write themselves, with the same fields
				return c.made.Struct(t)
			}
			return nil
		},
		Field: func(of reflect.Type, name string, s jsonschema.Schema) {
			limit := boundsOf(of)[name]
			if limit.items == 0 && c.requestOnly[of] {
				limit.items = perdure.MaxList // the limit of every list in a body
			}
			limit.describe(s)
		}}
	return c.made
}

// schemaNames has the names of schemas where the type's name is used twice, or is internal.
var schemaNames = map[reflect.Type]string{
	reflect.TypeFor[perdure.JournalEntry](): "NewJournalEntry",
	reflect.TypeFor[perdure.Message]():      "NewMessage",
	reflect.TypeFor[pollBody]():             "Poll",
	reflect.TypeFor[none]():                 "Nothing",
}

func schemaName(t reflect.Type) string {
	if name, ok := schemaNames[t]; ok {
		return name
	}
	return t.Name()
}

func openapi(c *call, _ *none) (int, *json.RawMessage, error) {
	doc := json.RawMessage(c.s.openapi)
	return 0, &doc, nil
}

// Vocabulary returns the text of the OpenAPI document and the types of lines. A secret that occurs
// in it can't be redacted, because every answer would become unreadable.
func Vocabulary() ([]byte, error) {
	doc, err := openAPI()
	doc = slices.Clip(doc)
	for _, line := range perdure.LineTypes {
		doc = append(doc, " "+string(line)...)
	}
	return doc, err
}

// queryBound returns the bound of a route's parameter.
func queryBound(r route, name string) bound {
	if b, ok := queryBounds[r.method+" "+r.pattern+" "+name]; ok {
		return b
	}
	return queryBounds[name]
}
