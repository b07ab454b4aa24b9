package agentcases

// address is the input of the rows about inputs.
const address = `{"City":"Bonn","Street":"Main"}`

// valueEdits are the edits of the types of results, signals and inputs.
var valueEdits = []Edit{
	{
		Area: "Types",
		Edit: "a step's type gains a field, or is another one that reads the same", Early: "the new type",
		Past: "the recorded value; a new field is zero",
		Cases: []Case{
			{Name: "a field is new", Before: "measure:priced wait", After: "measure:gained wait"},
			{Name: "a pointer", Before: "measure:priced wait", After: "measure:pointer wait"},
			{Name: "a map", Before: "measure:priced wait", After: "measure:map wait"},
			{Name: "any", Before: "measure:priced wait", After: "measure:any wait"},
			{Name: "raw JSON", Before: "measure:priced wait", After: "measure:raw wait"},
			{Name: "an int becomes a float", Before: "measure:int wait", After: "measure:float wait"},
		},
	},
	{
		Area: "Types",
		Edit: "a step's type loses or renames a field, or is another type: also `[]int` → `[2]int` with another " +
			"length, " +
			"and `string` ↔ `[]byte`", Early: "the new type",
		Past: "held: the value would arrive empty, cut or garbled. A new step under a new name, behind a " +
			"`Version`, or a " +
			"type that still has the field",
		Cases: []Case{
			{Name: "a field is renamed", Before: "measure:priced wait", After: "measure:renamed wait",
				Held: says("measure#1", "Amount, Tax", "renamed", `"Amount"`)},
			{Name: "a field is gone", Before: "measure:priced wait", After: "measure:lost wait",
				Held: says("measure#1", "lost", `"Tax"`)},
			{Name: "an object becomes a string", Before: "measure:priced wait", After: "measure:string wait",
				Held: says("measure#1", "an object with Amount, Tax", "string")},
			{Name: "a slice becomes a shorter array", Before: "measure:ints wait", After: "measure:array wait",
				Held: says("measure#1", "an array", "[2]int")},
			{Name: "a string becomes bytes", Before: "measure:string wait", After: "measure:bytes wait",
				Held: says("measure#1", "is bytes now")},
			{Name: "bytes become a string", Before: "measure:bytes wait", After: "measure:string wait",
				Held: says("measure#1", "is a string now")},
			{Name: "null, and no pointer any more", Before: "measure:null wait", After: "measure:priced wait",
				Held: says("measure#1", "null")},
		},
	},
	{
		Area: "Types",
		Edit: "the type of a signal or of a child's result loses a field", Early: "the field is ignored",
		Past: "the field is ignored",
		Cases: []Case{
			{Name: "of a signal", Before: "signal:paid:priced wait b", After: "signal:paid:lost wait b",
				Signals: map[string]string{"paid": `{"Amount":7,"Tax":1}`}},
			{Name: "of a child", Before: "child:priced::priced wait b", After: "child:priced::lost wait b"},
		},
	},
	{
		Area:  "Types",
		Edit:  "the type of a signal or of a child's result is another one, which can't read what came",
		Early: "an error, which the agent may handle",
		Past:  "held, if the old type could read it. An error that the agent got stays one",
		Cases: []Case{
			{Name: "of a signal", Before: "signal:paid:string wait b", After: "signal:paid:int wait b",
				Signals: map[string]string{"paid": `"cash"`}, Held: says("signal:paid#1", "a string, is no int")},
			{Name: "of a child", Before: "child:priced::priced wait b", After: "child:priced::int wait b",
				Held: says("priced#1", "is no int")},
		},
	},
	{
		Area: "Types",
		Edit: "the agent's input gains a field", Early: "the new type", Past: "the field is zero",
		Cases: []Case{
			{Name: "a field is new", Before: "a wait b", After: "a wait b", Input: address, Reads: "order",
				ReadsAfter: "longer"},
			{Name: "a field that was ignored is known", Before: "a wait b", After: "a wait b", Input: address,
				Reads:      "moved",
				ReadsAfter: "order"},
		},
	},
	{
		Area: "Types",
		Edit: "the agent's input loses or renames a field that the run's input has", Early: "the field is ignored",
		Past: "held: it would arrive empty. `worker.Kind.Ignores` names fields that are gone on purpose",
		Cases: []Case{
			{Name: "a field is renamed", Before: "a wait b", After: "a wait b", Input: address, Reads: "order",
				ReadsAfter: "moved", Held: says("input: ", "the field City", "worker.Kind.Ignores")},
			{Name: "a field is renamed on purpose", Before: "a wait b", After: "a wait b", Input: address,
				Reads:      "order",
				ReadsAfter: "moved ignores"},
		},
	},
	{
		Area: "Types",
		Edit: "the agent's input is another type, which can't read the run's input", Early: "fail with " +
			"`invalid_input`",
		Past: "held",
		Cases: []Case{
			{Name: "fields of another type", Before: "a wait b", After: "a wait b", Input: address, Reads: "order",
				ReadsAfter: "retyped", Held: says("input: ", "an object with City, Street")},
			{Name: "an object becomes a text", Before: "a wait b", After: "a wait b", Input: address, Reads: "map",
				ReadsAfter: "text", Held: says("input: ", "is no string")},
		},
	},
}
