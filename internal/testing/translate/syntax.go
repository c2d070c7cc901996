package translate

// typ is a type of WGSL.
type typ struct {
	kind kind
	n    int  // number of components of a vector, or of elements of an array; 0: the binding determines the length
	of   *typ // type of the elements of a vector, array or atomic
}

type kind uint8

const (
	void kind = iota
	boolean
	i32
	u32
	f32
	abstractInt   // a literal without suffix
	abstractFloat // a literal without suffix
	vector
	array
	atomic
)

var (
	voidType = &typ{kind: void}
	boolType = &typ{kind: boolean}
	i32Type  = &typ{kind: i32}
	u32Type  = &typ{kind: u32}
	f32Type  = &typ{kind: f32}
	intType  = &typ{kind: abstractInt}
	realType = &typ{kind: abstractFloat}
)

// expr is an expression. Its type is found by the writer.
type expr struct {
	kind exprKind
	text string // name, number, operator, member, function
	to   *typ   // of a constructor or a bitcast
	args []*expr
	line int
	deep int // levels of expressions below it
}

type exprKind uint8

const (
	literal exprKind = iota
	identifier
	unary
	binary
	call
	construct // to(args)
	bitcast
	index  // args[0][args[1]]
	member // args[0].text
)

// stmt is a statement.
type stmt struct {
	kind stmtKind
	text string // declared name; operator of an assignment
	typ  *typ   // declared type, or nil
	expr *expr  // initial value, condition, value, call
	left *expr  // of an assignment
	init *stmt  // of a for loop
	next *stmt  // of a for loop
	body []*stmt
	rest []*stmt // of an if: else
	line int
}

type stmtKind uint8

const (
	declareLet stmtKind = iota
	declareVar
	assign
	evaluate // a call
	branch
	loop // for and while
	block
	isolated // a block that sees the names of the module and of the inliner only
	returns
	breaks
	continues
)

// function is a function of a module.
type function struct {
	name       string
	parameters []parameter
	result     *typ
	body       []*stmt
	workgroup  []*expr // of an entry point
	line       int
}

type parameter struct {
	name, builtin string
	typ           *typ
}

// variable is a variable of a module: a binding, or memory of a workgroup.
type variable struct {
	name     string
	typ      *typ
	binding  int  // −1: workgroup memory
	writable bool // of bindings: declared read_write
	line     int
}

// constant is a constant of a module, whose value names no other constant if it is an integer.
type constant struct {
	name  string
	typ   *typ // declared; nil: the value's type
	value *expr
}

// module is a parsed source.
type module struct {
	variables []*variable // bindings in order, then workgroup memory
	constants map[string]constant
	names     map[string]int // the line that declares a name
	aliases   map[string]*typ
	functions []*function
	byName    map[string]*function
}
