// What .ci/windows-test.sh needs from a program of Windows.
//
//   helper end HOW TEXT LOG COMMAND   runs a command in a console of its own, with its output in LOG. Once the output
//                                     has TEXT, ends it: HOW is interrupt (Ctrl-C), close (of the console), kill, or
//                                     wait (not at all). Prints the command's exit code.
//   helper hold FILE                  holds a file open, as most programs do: others may read and write it, but neither
//                                     replace nor remove it. Ends with its input.
//   helper alone FILE                 holds a file open, and lets nobody else open it.
#include <stdio.h>
#include <windows.h>

static int fail(const wchar_t *what) {
	fwprintf(stderr, L"helper: %ls: error %lu\n", what, GetLastError());
	return 3;
}

static BOOL WINAPI ignore(DWORD event) {
	(void)event;
	return TRUE;
}

// close_console does to a process what Windows does when its console is closed: CTRL_CLOSE_EVENT, and five seconds to
// end. Wine kills the process instead.
static BOOL close_console(HANDLE process) {
	void *routine = GetProcAddress(GetModuleHandleW(L"kernelbase.dll"), "CtrlRoutine");
	if (!routine || !CreateRemoteThread(process, NULL, 0, routine, (void *)CTRL_CLOSE_EVENT, 0, NULL))
		return FALSE;
	if (WaitForSingleObject(process, 5000) != WAIT_OBJECT_0)
		TerminateProcess(process, STATUS_CONTROL_C_EXIT);
	return TRUE;
}

// has reports whether a file, which another process is writing, has a text of ASCII characters.
static BOOL has(const wchar_t *path, const char *text) {
	static char content[1 << 20];
	HANDLE f = CreateFileW(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, OPEN_EXISTING, 0, NULL);
	DWORD n = 0;
	if (f == INVALID_HANDLE_VALUE)
		return FALSE;
	ReadFile(f, content, sizeof content - 1, &n, NULL);
	CloseHandle(f);
	for (DWORD i = 0; i < n; i++)
		if (content[i] == 0)
			content[i] = ' ';
	content[n] = 0;
	return strstr(content, text) != NULL;
}

static int end(const wchar_t *how, const wchar_t *text, const wchar_t *log, wchar_t *command) {
	char ascii[256];
	SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
	STARTUPINFOW start = {.cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES};
	PROCESS_INFORMATION process;
	DWORD code = 0;
	WideCharToMultiByte(CP_UTF8, 0, text, -1, ascii, sizeof ascii, NULL, NULL);
	FreeConsole();
	if (!AllocConsole())
		return fail(L"AllocConsole");
	start.hStdOutput = start.hStdError = CreateFileW(log, FILE_APPEND_DATA, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited, CREATE_ALWAYS, 0, NULL);
	start.hStdInput = CreateFileW(L"NUL", GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited, OPEN_EXISTING, 0, NULL);
	if (start.hStdOutput == INVALID_HANDLE_VALUE)
		return fail(log);
	if (!CreateProcessW(NULL, command, NULL, NULL, TRUE, 0, NULL, NULL, &start, &process))
		return fail(command);
	SetConsoleCtrlHandler(ignore, TRUE);
	while (!has(log, ascii))
		if (WaitForSingleObject(process.hProcess, 50) == WAIT_OBJECT_0)
			break;
	if (!wcscmp(how, L"interrupt")) {
		if (!GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0))
			return fail(L"GenerateConsoleCtrlEvent");
	} else if (!wcscmp(how, L"close")) {
		if (!close_console(process.hProcess))
			return fail(L"CtrlRoutine");
	} else if (!wcscmp(how, L"kill")) {
		TerminateProcess(process.hProcess, 137);
	}
	WaitForSingleObject(process.hProcess, INFINITE);
	GetExitCodeProcess(process.hProcess, &code);
	printf("%lu\n", code);
	return 0;
}

static int hold(const wchar_t *path, DWORD share) {
	HANDLE f = CreateFileW(path, GENERIC_READ, share, NULL, OPEN_EXISTING, 0, NULL);
	if (f == INVALID_HANDLE_VALUE)
		return fail(path);
	puts("held");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}

int wmain(int n, wchar_t **args) {
	if (n == 6 && !wcscmp(args[1], L"end"))
		return end(args[2], args[3], args[4], args[5]);
	if (n == 3 && !wcscmp(args[1], L"hold"))
		return hold(args[2], FILE_SHARE_READ | FILE_SHARE_WRITE);
	if (n == 3 && !wcscmp(args[1], L"alone"))
		return hold(args[2], 0);
	fputs("helper: expected end, hold or alone\n", stderr);
	return 3;
}
