#include "graph/file_io.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "graph/error.h"
#include "support/temporary_folder.h"

namespace poet::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

size_t filesIn(const std::string& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(FileIo, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  for (const std::string& bytes :
       {std::string(), std::string("a\0b\n", 4), std::string(3 << 20, 'x')}) {
    writeFileAtomically(folder / "file", bytes);
    EXPECT_EQ(readFile(folder / "file"), bytes);
  }
  EXPECT_EQ(filesIn(folder.path()), 1u) << "a temporary file was left behind";
}

TEST(FileIo, KeepsThePermissionsOfTheFileThatItReplaces) {
  const TemporaryFolder folder;
  writeFileAtomically(folder / "file", "1");
  fs::permissions(folder / "file", fs::perms::owner_read | fs::perms::owner_write);
  writeFileAtomically(folder / "file", "2");
  EXPECT_EQ(fs::status(folder / "file").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST(FileIo, ReplacesTheFileBehindALink) {
  const TemporaryFolder folder;
  writeFileAtomically(folder / "real", "1");
  fs::create_symlink(folder / "real", folder / "link");
  writeFileAtomically(folder / "link", "2");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(readFile(folder / "real"), "2");
}

TEST(FileIo, WritesIntoAPipeAndLeavesItOne) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string got(5, '\0');
  std::thread reader([&] {
    const int fd = ::open(pipe.c_str(), O_RDONLY);
    EXPECT_EQ(::read(fd, got.data(), got.size()), 5);
    ::close(fd);
  });
  writeFileAtomically(pipe, "12345");
  reader.join();
  EXPECT_EQ(got, "12345");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(FileIo, WritesIntoAnOpenFileByItsDescriptor) {
  const TemporaryFolder folder;
  writeFileAtomically(folder / "file", "1");
  const int fd = ::open((folder / "file").c_str(), O_WRONLY | O_APPEND);
  writeFileAtomically(detail::message("/dev/fd/", fd), "2");
  EXPECT_EQ(::write(fd, "3", 1), 1) << "the file that was open is still the one under the name";
  ::close(fd);
  EXPECT_EQ(readFile(folder / "file"), "123");
  EXPECT_THAT([] { writeFileAtomically("/dev/full", "1"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))));
}

TEST(FileIo, WritesIntoTheWorkingFolder) {
  const TemporaryFolder folder;
  const auto old = fs::current_path();
  fs::current_path(folder.path());
  writeFileAtomically("plain_name", "1");
  fs::current_path(old);
  EXPECT_EQ(readFile(folder / "plain_name"), "1");
}

TEST(FileIo, NamesTheFileAndTheReason) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { readFile(folder / "none"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("none"), HasSubstr("No such file"))));
  EXPECT_THAT([&] { writeFileAtomically(folder / "none/file", "1"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("none/file"), HasSubstr("No such file"))));
  EXPECT_THAT([&] { writeFileAtomically(folder.path(), "1"); },
              ThrowsMessage<Error>(HasSubstr("cannot write")));
  EXPECT_TRUE(fs::is_directory(folder.path()));
}

TEST(FileIo, LeavesNoTemporaryFileWhenTheTargetCannotBeReplaced) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "taken");
  folder.write("taken/inside", "1");
  EXPECT_THROW(writeFileAtomically(folder / "taken", "2"), Error);
  EXPECT_EQ(filesIn(folder.path()), 1u);
}

TEST(FileIo, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { readFile(folder.path()); }, ThrowsMessage<Error>(HasSubstr("regular file")));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { readFile(folder / "pipe"); }, ThrowsMessage<Error>(HasSubstr("regular file")));
  EXPECT_THAT([] { readFile("/dev/zero"); }, ThrowsMessage<Error>(HasSubstr("regular file")));
}

TEST(FileIo, RefusesAHugeFileBeforeReadingIt) {
  const TemporaryFolder folder;
  folder.write("huge", "");
  fs::resize_file(folder / "huge", static_cast<uintmax_t>(kMaxFileBytes) + 1);  // sparse
  EXPECT_THAT([&] { readFile(folder / "huge"); }, ThrowsMessage<Error>(HasSubstr("at most")));
}

TEST(FileIo, AReaderSeesTheOldFileOrTheNewOne) {
  const TemporaryFolder folder;
  const std::string old_bytes(200000, 'a');
  const std::string new_bytes(300000, 'b');
  writeFileAtomically(folder / "file", old_bytes);
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i)
      writeFileAtomically(folder / "file", i % 2 ? old_bytes : new_bytes);
  });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = readFile(folder / "file");
    EXPECT_TRUE(seen == old_bytes || seen == new_bytes) << seen.size();
  }
  writer.join();
}

}  // namespace
}  // namespace poet::testing
