// bcryptprimitives.dll for Wine 8, which Debian 12 has. For tests alone: Windows has its own, and no archive holds this
// one. Go's runtime loads it first of all. It has what Go uses of Windows 10 and Wine 8 lacks:
//
//   ProcessPrng: random numbers.
//   FileDispositionInformationEx of NtSetInformationFile: Wine answers that it is not implemented. Go expects the
//   answer of older versions of Windows, that there is no such class, and then removes files in another way.
//   CreateSymbolicLink: Wine reports success and does nothing. Here it fails as it does for most users of Windows, who
//   lack the right to make links.
#include <string.h>
#include <windows.h>
#include <winternl.h>

#define DISPOSITION_EX 64
#define NOT_IMPLEMENTED ((NTSTATUS)0xC0000002)
#define INVALID_INFO_CLASS ((NTSTATUS)0xC0000003)

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T bytes) { return SystemFunction036(to, (ULONG)bytes); }

static NTSTATUS(NTAPI *set_information)(HANDLE, PIO_STATUS_BLOCK, PVOID, ULONG, int);

static NTSTATUS NTAPI set_known_information(HANDLE file, PIO_STATUS_BLOCK status, PVOID data, ULONG bytes, int class) {
	NTSTATUS s = set_information(file, status, data, bytes, class);
	return class == DISPOSITION_EX && s == NOT_IMPLEMENTED ? INVALID_INFO_CLASS : s;
}

static BOOLEAN WINAPI no_links(LPCWSTR link, LPCWSTR target, DWORD flags) {
	(void)link, (void)target, (void)flags;
	SetLastError(ERROR_PRIVILEGE_NOT_HELD);
	return FALSE;
}

// jump makes code that jumps to a function, less than 4 GiB behind a module: so far do the offsets of its exports
// reach.
static BYTE *jump(BYTE *module, void *to) {
	static const BYTE jmp[] = {0xFF, 0x25, 0, 0, 0, 0}; // to the address that follows
	for (SIZE_T offset = 1 << 26; offset < 0xF0000000; offset += 1 << 16) {
		BYTE *code = VirtualAlloc(module + offset, sizeof jmp + sizeof to, MEM_RESERVE | MEM_COMMIT, PAGE_EXECUTE_READWRITE);
		if (code) {
			memcpy(code, jmp, sizeof jmp);
			memcpy(code + sizeof jmp, &to, sizeof to);
			return code;
		}
	}
	return NULL;
}

// export makes a module's export lead to another function, for those who look it up from now on.
static BOOL export(BYTE *module, const char *name, void *to) {
	IMAGE_NT_HEADERS *head = (void *)(module + ((IMAGE_DOS_HEADER *)module)->e_lfanew);
	IMAGE_EXPORT_DIRECTORY *e = (void *)(module + head->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_EXPORT].VirtualAddress);
	DWORD *names = (void *)(module + e->AddressOfNames), *functions = (void *)(module + e->AddressOfFunctions), access;
	WORD *ordinals = (void *)(module + e->AddressOfNameOrdinals);
	BYTE *code = jump(module, to);
	for (DWORD i = 0; i < e->NumberOfNames; i++) {
		DWORD *f = &functions[ordinals[i]];
		if (code && strcmp((char *)module + names[i], name) == 0 && VirtualProtect(f, sizeof *f, PAGE_READWRITE, &access)) {
			*f = (DWORD)(code - module);
			return VirtualProtect(f, sizeof *f, access, &access);
		}
	}
	return FALSE;
}

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, LPVOID reserved) {
	(void)self, (void)reserved;
	if (reason == DLL_PROCESS_ATTACH) {
		HMODULE ntdll = GetModuleHandleW(L"ntdll.dll");
		set_information = (void *)GetProcAddress(ntdll, "NtSetInformationFile");
		return export((BYTE *)ntdll, "NtSetInformationFile", set_known_information) &&
			   export((BYTE *)GetModuleHandleW(L"kernel32.dll"), "CreateSymbolicLinkW", no_links);
	}
	return TRUE;
}
