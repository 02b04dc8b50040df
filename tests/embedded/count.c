/* A QEMU plugin that counts instructions: all, those between two calls of one function, and those of each function.
 *
 *     gcc -O2 -shared -fPIC count.c -o count.so
 *     qemu-system-arm ... -plugin ./count.so,out=FILE,mark=SYMBOL
 *
 * FILE gets a line "mark N COUNT" for what ran between the calls N and N + 1 of SYMBOL, then "function COUNT NAME", the
 * busiest first, then "all COUNT". The plugin interface (version 1) is declared here, since distributions leave out its header. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
typedef void (*on_block)(plugin_id, void* block);
typedef void (*on_call)(unsigned cpu, void* user);
typedef void (*on_end)(plugin_id, void* user);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, on_block);
void qemu_plugin_register_vcpu_insn_exec_cb(void* insn, on_call, int flags, void* user);
void qemu_plugin_register_vcpu_insn_exec_inline(void* insn, int add_u64, void* counter, uint64_t n);
void qemu_plugin_register_atexit_cb(plugin_id, on_end, void* user);
size_t qemu_plugin_tb_n_insns(const void* block);
void* qemu_plugin_tb_get_insn(const void* block, size_t i);
const char* qemu_plugin_insn_symbol(const void* insn);
uint64_t qemu_plugin_insn_vaddr(const void* insn);
__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { most_functions = 4096, most_marks = 65536 };
static struct function { const char* name; uint64_t count; } functions[most_functions];
static uint64_t all, marks[most_marks], mark_address;
static size_t n_functions, n_marks;
static const char *out = "count.txt", *mark = "";

static uint64_t* counter(const char* name)
{
    size_t i = 0;
    while (i < n_functions && strcmp(functions[i].name, name) != 0) i++;
    if (i == n_functions && n_functions < most_functions) functions[n_functions++].name = strdup(name);
    return &functions[i < most_functions ? i : most_functions - 1].count;
}

static void at_mark(unsigned cpu, void* user)
{
    (void)cpu;
    (void)user;
    if (n_marks < most_marks) marks[n_marks++] = all;
}

static void translated(plugin_id id, void* block)
{
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        void* const insn = qemu_plugin_tb_get_insn(block, i);
        const char* const symbol = qemu_plugin_insn_symbol(insn);
        const char* const name = symbol ? symbol : "?";
        qemu_plugin_register_vcpu_insn_exec_inline(insn, 0, &all, 1);
        qemu_plugin_register_vcpu_insn_exec_inline(insn, 0, counter(name), 1);
        if (strcmp(name, mark) != 0) continue;
        if (!mark_address) mark_address = qemu_plugin_insn_vaddr(insn);          /* its first instruction is met first */
        if (qemu_plugin_insn_vaddr(insn) == mark_address) qemu_plugin_register_vcpu_insn_exec_cb(insn, at_mark, 0, NULL);
    }
}

static int busier(const void* a, const void* b)
{
    const uint64_t x = ((const struct function*)a)->count, y = ((const struct function*)b)->count;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void ended(plugin_id id, void* user)
{
    FILE* const file = fopen(out, "w");
    (void)id;
    (void)user;
    if (!file) return;
    for (size_t i = 0; i + 1 < n_marks; i++) fprintf(file, "mark %zu %llu\n", i, (unsigned long long)(marks[i + 1] - marks[i]));
    qsort(functions, n_functions, sizeof functions[0], busier);
    for (size_t i = 0; i < n_functions; i++) fprintf(file, "function %llu %s\n", (unsigned long long)functions[i].count, functions[i].name);
    fprintf(file, "all %llu\n", (unsigned long long)all);
    fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void* info, int argc, char** argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0) out = strdup(argv[i] + 4);
        if (strncmp(argv[i], "mark=", 5) == 0) mark = strdup(argv[i] + 5);
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
