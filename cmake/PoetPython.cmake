# The interpreter, and where its packages are: torch, cbcbox and the nlohmann-json headers are looked up there.
#
# Sets POET_SITE_DIRS: the interpreter's purelib first, then what else is on its path. The order matters in pip's isolated
# build: there the interpreter is still that of the user's environment, so its purelib is where torch is, while the path
# also holds the temporary environment with the build requirements.

set(Python_FIND_VIRTUALENV FIRST)
if(POET_BUILD_TORCH AND POET_BUILD_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
else()
  find_package(Python 3.10 COMPONENTS Interpreter)
endif()

set(POET_SITE_DIRS "")
if(Python_Interpreter_FOUND)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import os, site, sys, sysconfig
paths = sysconfig.get_paths()
dirs = [paths['purelib'], paths['platlib']] + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
dirs += [p for p in sys.path if p.endswith(('site-packages', 'dist-packages')) or 'overlay' in p]
print(';'.join(d for d in dict.fromkeys(dirs) if os.path.isdir(d)))"
    OUTPUT_VARIABLE POET_SITE_DIRS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
