// hipRTC on paper, in place of libhiprtc.so.7: a program is compiled by g++ behind the grid of tests/_grid.h, which stands
// in place of the prelude, and its code is a shared library that runtime.cpp loads. Options other than -D and -I are dropped.
//
//   GRID_HEADER, PRELUDE, STUBS   paths: the grid, the prelude that it replaces, and headers in place of HIP's own
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum { DONE = 0, INVALID = 3, COMPILATION = 6, UNKNOWN_NAME = 10 };
struct Program {
    std::string source, log, code;
    std::vector<std::string> expressions, options;
    std::map<std::string, std::string> lowered;
};

std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string quoted(const std::string& text) { return "'" + std::regex_replace(text, std::regex("'"), "'\\''") + "'"; }

// `-Bsymbolic`: a kernel may be called `read` or `write`, as functions of the C library are.
// What runtime.cpp calls: the arguments are packed at the launch, and taken apart when the kernel runs.
std::string wrapped(const std::string& expression, const std::string& name) {
    return "extern \"C\" void* paper_pack_" + name + "(void** a) { return grid::pack(" + expression + ", a); }\n" +
           "extern \"C\" void paper_launch_" + name + "(void* a, const u32* g, const u32* b, u64* n, void (*w)()) { grid::launch(" +
           expression + ", a, g, b, n, w); }\n" + "extern \"C\" void paper_drop_" + name + "(void* a) { grid::drop(" +
           expression + ", a); }\n";
}

int shell(const std::string& command) { return system(command.c_str()); }

int compile(Program& program, int count, const char** options) {
    char folder[] = "/tmp/paper-hip-XXXXXX";
    if (!mkdtemp(folder)) return INVALID;
    const std::string at = folder;
    std::string flags = "-std=c++17 -w -O2 -march=native -mtls-dialect=gnu2 -fPIC -D__HIPCC_RTC__=1 -DPAPER_HIP=1 -DWARP=64 -I" STUBS;
    for (int i = 0; i < count; ++i)
        if (!strncmp(options[i], "-D", 2) || !strncmp(options[i], "-I", 2)) flags += " " + quoted(options[i]);
    std::string source = program.source;
    const std::string prelude = content(PRELUDE);
    const size_t place = source.find(prelude);
    if (place != std::string::npos) source.erase(place, prelude.size());
    source = std::regex_replace(source, std::regex("extern\\s+__shared__\\s+(__align__\\(\\d+\\)\\s+)?([\\w ]+)\\s+(\\w+)\\[\\];"),
                                "static thread_local __attribute__((aligned(16))) $2 $3[65536 / sizeof($2)];");
    source = std::regex_replace(source, std::regex("typedef\\s+(\\w+)\\s+(\\w+)\\s+__attribute__\\(\\(ext_vector_type\\((\\d+)\\)\\)\\);"),
                                "typedef $1 $2 __attribute__((vector_size($3 * sizeof($1))));");
    const std::string file = at + "/kernel.cpp", head = "#include \"" GRID_HEADER "\"\n#include \"paper_launch.h\"\n";
    std::ofstream(file) << head << source;
    const std::string log = at + "/log", preprocessed = at + "/kernel.i", library = at + "/kernel.so";
    int status = shell("g++ " + flags + " -E -P " + file + " -o " + preprocessed + " 2>" + log);
    if (!status) {
        std::string wrappers;
        const std::string text = content(preprocessed);
        const std::regex kernel("extern \"C\"\\s+(?:static\\s+)?void\\s+(\\w+)\\s*\\(");
        std::set<std::string> names;
        for (std::sregex_iterator found(text.begin(), text.end(), kernel), end; found != end; ++found)
            names.insert((*found)[1].str());
        for (const std::string& name : names) wrappers += wrapped(name, name);
        for (size_t i = 0; i < program.expressions.size(); ++i) {
            const std::string name = "expression_" + std::to_string(i);
            program.lowered[program.expressions[i]] = name;
            wrappers += wrapped("(" + program.expressions[i] + ")", name);
        }
        std::ofstream(file, std::ios::app) << "\n" << wrappers;
        status = shell("g++ " + flags + " -shared -Wl,-Bsymbolic " + file + " -o " + library + " 2>" + log);
    }
    program.log = content(log);
    if (!status) {
        const std::string built = content(library);
        const size_t bytes = built.size();
        program.code = "PAPERELF" + std::string((const char*)&bytes, sizeof bytes) + built;
    } else if (getenv("PAPER_HIP_KEEP")) {
        fprintf(stderr, "paper hipRTC: %s\n", file.c_str());
        return COMPILATION;
    }
    shell("rm -rf " + at);
    return status ? COMPILATION : DONE;
}
}  // namespace

EXPORT const char* hiprtcGetErrorString(int error) {
    return error == DONE ? "HIPRTC_SUCCESS" : error == COMPILATION ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR_INVALID_INPUT";
}
EXPORT int hiprtcVersion(int* major, int* minor) { return *major = 9, *minor = 0, DONE; }
EXPORT int hiprtcCreateProgram(Program** program, const char* source, const char*, int, const char**, const char**) {
    *program = new Program;
    (*program)->source = source;
    return DONE;
}
EXPORT int hiprtcDestroyProgram(Program** program) {
    delete *program;
    return *program = nullptr, DONE;
}
EXPORT int hiprtcAddNameExpression(Program* program, const char* expression) {
    return program->expressions.push_back(expression), DONE;
}
EXPORT int hiprtcCompileProgram(Program* program, int count, const char** options) {
    return compile(*program, count, options);
}
EXPORT int hiprtcGetLoweredName(Program* program, const char* expression, const char** name) {
    const auto found = program->lowered.find(expression);
    if (found == program->lowered.end()) return UNKNOWN_NAME;
    return *name = found->second.c_str(), DONE;
}
EXPORT int hiprtcGetCodeSize(Program* program, size_t* bytes) { return *bytes = program->code.size(), DONE; }
EXPORT int hiprtcGetCode(Program* program, char* code) {
    return memcpy(code, program->code.data(), program->code.size()), DONE;
}
EXPORT int hiprtcGetProgramLogSize(Program* program, size_t* bytes) { return *bytes = program->log.size() + 1, DONE; }
EXPORT int hiprtcGetProgramLog(Program* program, char* log) { return strcpy(log, program->log.c_str()), DONE; }
EXPORT int hiprtcGetBitcodeSize(Program*, size_t*) { return INVALID; }
EXPORT int hiprtcGetBitcode(Program*, char*) { return INVALID; }
