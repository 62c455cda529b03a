// SPDX-License-Identifier: Apache-2.0
/*
 * Starts the program in the ELF file: static CPython, with the program's modules and those of the standard library
 * frozen into it. `freeze.py` writes what is declared `extern` here, `native.py` compiles and links it all.
 *
 * For a container runtime (hook, createRuntime, poststop) only CPython's core phase is initialized (PEP 587,
 * "Multi-Phase Initialization Private Provisional API"): builtin and frozen modules can be imported, and UTF-8, Latin-1
 * and ASCII work, but there is no open(), no sys.stdout, no other codec. For people all of Python is initialized.
 *
 * A hook that fails must not fail its container: whatever goes wrong, a fatal signal too, ends with one line on stderr
 * and in syslog, and with `failure_status`.
 */
#define _GNU_SOURCE
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_codecs.h>
#include <internal/pycore_import.h>
#include <internal/pycore_initconfig.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_pylifecycle.h>
#include <internal/pycore_runtime.h>
#include <marshal.h>

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Module -> code object, marshalled; the table of the modules that are imported by name. First a hook's importlib. */
extern const struct _frozen frozen_modules[];
/* A code object, marshalled: it makes the modules that each start imports, and then runs the program. */
extern const unsigned char frozen_start[], frozen_start_end[];

static const char *const STAGES[] = {"hook", "createRuntime", "poststop"};
enum { CPU_SECONDS = 10, STACK_BYTES = 8 << 20, HEAP_STEP = 512 << 10 };

static const char *stage;   /* the verb, if a container runtime has started us; else NULL */
static int failure_status;  /* the exit status of a failure */
static const char *program; /* the path of this file, as it was called */

/* The command of `run` without --strict, or NULL, and what it is to have as this process got it. */
static char **command;
static mode_t file_mask;
static sigset_t signal_mask;
static char **zone, *zone_text; /* TZ in the environment, which system.ignore_zone replaces */

/* --- Failing open. Only async-signal-safe functions: see signal-safety(7). */

static char line[1024];
static size_t size;

static void add(const char *text)
{
    for (; *text != '\0' && size < sizeof line - 1; text++)
        line[size++] = *text == '\n' ? ' ' : *text;
}

/* No failure of ours stops a command. As hook/node/command.py does. */
static void execute_command(void)
{
    umask(file_mask);
    sigprocmask(SIG_SETMASK, &signal_mask, NULL);
    *zone = zone_text; /* it is the end, if there is no TZ */
    execvp(command[0], command);
    failure_status = errno == ENOENT ? 127 : 126;
}

/* Ends the process with a line on stderr, and for a runtime also in syslog; waits for neither. */
static void leave(const char *why, const char *what)
{
    static const char priority[] = "<28>"; /* daemon, warning: only syslog gets it */
    const struct sockaddr_un log = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
    struct pollfd standard_error = {.fd = STDERR_FILENO, .events = POLLOUT};

    const char *const words[] = {
        priority, "resctrl-mon-hook: ", stage != NULL ? stage : "",
        stage != NULL ? ": nothing was done for this container: " : "", "cannot run ", program, ": ", why, what,
        "; hint: the file is damaged (install it again), or there is too little memory",
        command != NULL ? "; the command runs, and is not monitored" : "",
    };

    for (size_t i = 0; i < Py_ARRAY_LENGTH(words); i++)
        add(words[i]);
    line[size] = '\n';
    if (poll(&standard_error, 1, 0) != 0)
        (void)!write(STDERR_FILENO, line + strlen(priority), size + 1 - strlen(priority));
    if (stage != NULL) {
        int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!sendto(descriptor, line, size, 0, (const struct sockaddr *)&log, sizeof log);
    }
    if (command != NULL)
        execute_command();
    _exit(failure_status);
}

static void leave_by_signal(int number)
{
    leave("signal SIG", sigabbrev_np(number));
}

static void do_nothing(int number)
{
    (void)number;
}

/* Handles what would end the process; a hook also unblocks it.
 *
 * The command of `run` gets all signals as they were: the mask is left alone, and so is what is ignored, and the kernel
 * resets a handler. So SIGPIPE and SIGXFSZ have one: as all of Python does, we go by the error of the system call.
 */
static void handle_signals(void)
{
    static char stack[1 << 16]; /* the stack may be what there is too little of */
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    const int numbers[] = {SIGPIPE, SIGXFSZ, SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGXCPU, SIGSYS, SIGTRAP};
    struct sigaction action = {.sa_flags = SA_ONSTACK | SA_RESTART}, former;
    sigset_t handled;

    sigaltstack(&other, NULL);
    sigemptyset(&handled);
    for (size_t i = 0; i < Py_ARRAY_LENGTH(numbers); i++) {
        action.sa_handler = i < 2 ? do_nothing : leave_by_signal;
        if (stage == NULL && sigaction(numbers[i], NULL, &former) == 0 && former.sa_handler == SIG_IGN)
            continue;
        sigaction(numbers[i], &action, NULL);
        sigaddset(&handled, numbers[i]);
    }
    if (stage != NULL)
        sigprocmask(SIG_UNBLOCK, &handled, NULL);
}

/* Sets the limits of a hook, as far as the hard limits allow. */
static void set_limits(void)
{
    struct rlimit limit;

    /* Without memory CPython can try the same step for ever (exception_unwind in Python/ceval.c). */
    if (getrlimit(RLIMIT_CPU, &limit) == 0 && limit.rlim_cur > CPU_SECONDS) {
        limit.rlim_cur = Py_MIN(CPU_SECONDS, limit.rlim_max);
        setrlimit(RLIMIT_CPU, &limit);
    }
    /* The kernel looks at this limit whenever the stack grows, and maps nothing below it: see exec in its sources. */
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < STACK_BYTES) {
        limit.rlim_cur = Py_MIN(STACK_BYTES, limit.rlim_max);
        setrlimit(RLIMIT_STACK, &limit);
    }
}

/* Ends the process for the exception that is set. */
static void leave_by_exception(void)
{
    PyObject *error = PyErr_GetRaisedException();
    PyObject *text = error != NULL ? PyObject_Repr(error) : NULL;
    const char *why = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    if (error != NULL && PyErr_GivenExceptionMatches(error, PyExc_MemoryError))
        leave("there is too little memory", "");
    if (stage == NULL && command == NULL && error != NULL)
        PyErr_DisplayException(error);
    leave(why != NULL ? why : "an exception without a text", "");
}

/* --- The start */

/* In place of glibc's, by the linker (native.py): GLIBC_TUNABLES or MALLOC_TOP_PAD_ could leave no memory for a start. */
void __wrap___tunables_init(char **environment);
void __wrap___tunables_init(char **environment)
{
    (void)environment;
}

/* In place of Modules/getpath.c, which cpython.py leaves out: start_python gives all that it would look for. */
PyStatus _PyConfig_InitPathConfig(PyConfig *config, int compute_path_config)
{
    (void)config, (void)compute_path_config;
    return PyStatus_Ok();
}

/* In place of glibc's while Python starts: the import of `time` asks for the zone, and TZ may name an endless file. */
static int has_started;
struct tm *__real_localtime_r(const time_t *when, struct tm *result);
struct tm *__wrap_localtime_r(const time_t *when, struct tm *result);
struct tm *__wrap_localtime_r(const time_t *when, struct tm *result)
{
    if (has_started)
        return __real_localtime_r(when, result);
    *result = (struct tm){.tm_zone = "UTC"};
    return result;
}

/* In place of glibc's, which reads the zone's file first: UTC needs none. */
int __offtime(time_t when, long offset, struct tm *result);
struct tm *__wrap_gmtime_r(const time_t *when, struct tm *result);
struct tm *__wrap_gmtime_r(const time_t *when, struct tm *result)
{
    *result = (struct tm){.tm_zone = "GMT"};
    return __offtime(*when, 0, result) ? result : NULL;
}

static void require(PyStatus status)
{
    if (PyStatus_Exception(status))
        leave("Python does not start: ", status.err_msg != NULL ? status.err_msg : "no reason given");
}

/* In the parent of `run --wait`: the child executes the command. */
static void forget_command(void)
{
    command = NULL;
}

/* As hook/node/command.py finds it, and restores what it was started with. */
static void note_command(char **words)
{
    char **word = words;

    for (; *word != NULL && strcmp(*word, "--") != 0; word++)
        if (strcmp(*word, "--strict") == 0 || strncmp(*word, "--strict=", strlen("--strict=")) == 0)
            return;
    if (*word == NULL || *++word == NULL)
        return;
    command = word;
    file_mask = umask(022);
    umask(file_mask);
    sigprocmask(SIG_BLOCK, NULL, &signal_mask);
    for (zone = environ; *zone != NULL && strncmp(*zone, "TZ=", strlen("TZ=")) != 0; zone++)
        ;
    zone_text = *zone;
    pthread_atfork(NULL, forget_command, NULL);
}

/* As hook/__main__.py decides. */
static void read_command_line(int argc, char **argv)
{
    int is_help = 0, is_strict = 0;

    program = (const char *)getauxval(AT_EXECFN);
    if (program == NULL)
        program = "resctrl-mon-hook";
    for (int i = 2; i < argc; i++) {
        is_help |= strcmp(argv[i], "--help") == 0;
        is_strict |= strcmp(argv[i], "--strict") == 0;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(STAGES); i++)
        if (argc > 1 && !is_help && strcmp(argv[1], STAGES[i]) == 0)
            stage = STAGES[i];
    if (argc > 1 && strcmp(argv[1], "run") == 0)
        note_command(argv + 2);
    failure_status = stage == NULL ? 2 : is_strict && strcmp(stage, "createRuntime") == 0;
}

/* Makes what the core phase leaves NULL, and would crash on: for `import _signal`, and the registry of codecs.
 *
 * CPython's own error handlers are in that, but no codec: the registry's last step is to import `encodings`, which takes
 * a fourth of a start. So another module has that name until then.
 */
static void complete_core_phase(void)
{
    PyObject *modules = PyImport_GetModuleDict();

    if (PyDict_SetItemString(modules, "encodings", PyDict_GetItemString(modules, "sys")) < 0)
        leave_by_exception();
    require(_PyCodec_InitRegistry(PyInterpreterState_Get()));
    if (PyDict_DelItemString(modules, "encodings") < 0 || _PySignal_Init(0) < 0)
        leave_by_exception();
}

/* Of CPython (Python/fileutils.c): whether open(2) knows O_CLOEXEC, as since Linux 2.6.23. It would look at each start. */
extern int _Py_open_cloexec_works;

/* No environment variable, file or locale changes what runs: isolated, in UTF-8, and without a path to import from.
 *
 * Modules of the library make paths from the prefixes. There is no path below /dev/null.
 */
static void start_python(void)
{
    PyPreConfig before;
    PyConfig config;
    wchar_t **const names[] = {&config.executable, &config.base_executable, &config.stdlib_dir, &config.program_name};
    wchar_t **const prefixes[] = {&config.prefix, &config.base_prefix, &config.exec_prefix, &config.base_exec_prefix};

    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    require(Py_PreInitialize(&before));
    PyConfig_InitIsolatedConfig(&config);
    config.parse_argv = 0;
    config.site_import = 0;
    config.write_bytecode = 0;
    config.pathconfig_warnings = 0;
    config.module_search_paths_set = 1;
    config.optimization_level = 2;
    config.code_debug_ranges = 0;
    config._init_main = stage == NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++)
        require(PyConfig_SetString(&config, names[i], L""));
    for (size_t i = 0; i < Py_ARRAY_LENGTH(prefixes); i++)
        require(PyConfig_SetString(&config, prefixes[i], L"/dev/null"));
    _PyImport_FrozenBootstrap = frozen_modules + (stage == NULL);
    _Py_open_cloexec_works = 1;
    /* A hook needs what it makes until its end. hook/cli/command_line.py enables the garbage collector. */
    _PyRuntime._main_interpreter.gc.enabled = 0;
    require(Py_InitializeFromConfig(&config));
    if (stage != NULL)
        complete_core_phase();
    if (PyImport_ImportModule("time") == NULL)
        leave_by_exception();
    has_started = 1;
}

/* Sets sys.argv, which the core phase does not. */
static void set_arguments(int argc, char **argv)
{
    PyObject *list = PyList_New(0);

    for (int i = 0; list != NULL && i < Py_MAX(argc, 1); i++) {
        const char *word = i == 0 ? program : argv[i];
        PyObject *text = PyUnicode_DecodeUTF8(word, (Py_ssize_t)strlen(word), "surrogateescape");
        if (text == NULL || PyList_Append(list, text) < 0)
            leave_by_exception();
    }
    if (list == NULL || PySys_SetObject("argv", list) < 0)
        leave_by_exception();
}

int main(int argc, char **argv)
{
    read_command_line(argc, argv);
    handle_signals();
    if (stage != NULL) {
        set_limits();
        /* A hook ends soon: the heap grows in larger steps, and never shrinks. */
        mallopt(M_TOP_PAD, HEAP_STEP);
        mallopt(M_TRIM_THRESHOLD, INT_MAX);
        clearenv(); /* TZ, for one, may name a file that never ends */
    }
    start_python();
    set_arguments(argc, argv);

    PyObject *code = PyMarshal_ReadObjectFromString((const char *)frozen_start, frozen_start_end - frozen_start);
    PyObject *names = PyDict_New();
    if (code == NULL || names == NULL || PyEval_EvalCode(code, names, names) == NULL)
        leave_by_exception();
    leave("the program has ended without an exit status", "");
}
