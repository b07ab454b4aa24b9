package vectors

import (
	"encoding/json"
	"reflect"

	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/wire/session"
)

// reads reads the input of the run into a type, as package worker does before it calls an agent. gone has
// the fields that the code ignores on purpose.
func reads[T any](ctx *agent.Context, x execution, gone ...string) (in T, err error) {
	err = json.Unmarshal(x.s.inputNow(), &in)
	return in, session.CheckInput(ctx, reflect.TypeFor[T](), gone, err)
}

// The types of an input of {"city", "days", "by": {"name", "since"}}.
type (
	byName struct {
		Name string `json:"name"`
	}
	cityAndBy struct {
		City string `json:"city"`
		By   byName `json:"by"`
	}
	cityAndDays struct {
		City string `json:"city"`
		Days int    `json:"days"`
		By   byName `json:"by"`
	}
	cityName struct {
		City string `json:"city"`
	}
	cityNumber struct {
		City int `json:"city"`
	}
	daysAndBy struct {
		Days int    `json:"days"`
		By   byName `json:"by"`
	}
)

var tripInput = json.RawMessage(`{"by":{"name":"Ann","since":2020},"city":"Bern","days":2}`)

var inputStories = []story{
	{
		name:  "input-fields",
		input: tripInput,
		words: []string{
			`The first build reads the fields "city" and "by", an object with the field "name", of its input. The`,
			`step "plan" gives the city, the agent waits for the signal "go", and the step "mail" gives the name,`,
			`the result. The second build reads "days", too, which changes nothing.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			in, err := reads[cityAndBy](ctx, x)
			if x.number > 1 {
				var more cityAndDays
				more, err = reads[cityAndDays](ctx, x)
				in = cityAndBy{more.City, more.By}
			}
			if err != nil {
				return nil, err
			}
			if _, err := agent.Step(ctx, "plan", gives(in.City)); err != nil {
				return nil, err
			}
			if _, err := agent.OnSignal[any](ctx, "go").Join(ctx); err != nil {
				return nil, err
			}
			return agent.Step(ctx, "mail", gives(in.By.Name))
		},
		turns: []turn{{}, {what: newBuild, before: goOn}},
	},
	{
		name:  "input-field-lost-is-held",
		input: tripInput,
		words: []string{
			`The first build reads the fields "city" and "by", an object with the field "name", of its input. It`,
			`waits for the signal "go", and the step "plan" gives the city, the result. The second build reads "days"`,
			`and "by", and not "city": it is held. The third one reads the same, and says that it ignores "city". It`,
			`goes on, and the step "plan" gives "".`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			var gone []string
			if x.number == 3 {
				gone = []string{"city"}
			}
			city := ""
			if x.number > 1 {
				if _, err := reads[daysAndBy](ctx, x, gone...); err != nil {
					return nil, err
				}
			} else {
				in, err := reads[cityAndBy](ctx, x)
				if err != nil {
					return nil, err
				}
				city = in.City
			}
			if _, err := agent.OnSignal[any](ctx, "go").Join(ctx); err != nil {
				return nil, err
			}
			return agent.Step(ctx, "plan", gives(city))
		},
		turns: []turn{{}, {what: newBuild, before: goOn}, {what: "The third build executes the run."}},
	},
	{
		name:  "input-of-another-type-is-held",
		input: json.RawMessage(`{"city":"Bern"}`),
		words: []string{
			`The first build reads the field "city" of its input as a text. The step "plan" gives it, the agent waits`,
			`for the signal "go", and the result is the city. The second build reads "city" as a number: it is held.`,
			`The third execution is made by the first build again.`,
		},
		agent: func(ctx *agent.Context, x execution) (any, error) {
			if x.number == 2 {
				if _, err := reads[cityNumber](ctx, x); err != nil {
					return nil, err
				}
			}
			in, err := reads[cityName](ctx, x)
			if err != nil {
				return nil, err
			}
			if _, err := agent.Step(ctx, "plan", gives(in.City)); err != nil {
				return nil, err
			}
			_, err = agent.OnSignal[any](ctx, "go").Join(ctx)
			return in.City, err
		},
		turns: []turn{{}, {what: newBuild, before: goOn}, {what: "The first build is back."}},
	},
}
